"""A trace that is about to be recorded: everything checked, encoded and described before the first forward."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from sinklens.models.load import wrap
from sinklens.recording.identity import (
    describe_model,
    describe_sampler,
    describe_versions,
    find_certificate,
    hash_json,
)
from sinklens.recording.wanted import Wanted, read_wanted
from sinklens.sampling.graphs import captured
from sinklens.sampling.prompt import read_prompt
from sinklens.sampling.prompt_list import Prompt, as_prompts, encode_prompt
from sinklens.sampling.rng import read_seed
from sinklens.sampling.step import Sampler
from sinklens.traces.estimate import estimate_bytes

MAP_BYTES = 2  # of an entry of a whole map, rounded and compressed


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """What will run."""

    model: Any  # a LanguageModel
    sampler: Sampler
    prompts: Sequence[Prompt]
    ids: Sequence[list[int]]  # of each prompt
    wanted: Wanted
    seed: int  # of the first sample; the next one has seed + 1
    chat: bool
    name: str | None
    graph: bool = False

    @property
    def steps(self) -> int:
        """Forwards a sample takes, as far as the sampler says."""
        return self._said("steps") or self._said("length") or 1

    @property
    def keys(self) -> list[int]:
        """How wide the canvas of each sample will be."""
        return [len(row) + self._said("length") for row in self.ids]

    def _said(self, name: str) -> int:
        """A number that the sampler has; 0 where it has none of that name, or something else."""
        said = getattr(self.sampler, name, None)
        return int(said) if isinstance(said, Integral) and not isinstance(said, bool) else 0

    def estimate(self) -> int:
        """Bytes the trace will take on disk, about."""
        spec, wanted = self.model.spec, self.wanted
        whole = sum(
            estimate_bytes(
                samples=1,
                steps=self.steps,
                layers=len(wanted.layers),
                heads=len(wanted.heads),
                kv_heads=spec.kv_heads,
                keys=keys,
                detail=wanted.detail,
                every=wanted.every,
                norms=wanted.norms,
                causal=spec.causal,
                exact=wanted.exact,
            )
            for keys in self.keys
        )
        return whole + len(wanted.maps) * sum(keys * keys * MAP_BYTES for keys in self.keys)

    def manifest(self) -> dict[str, Any]:
        """What the trace will say of itself; hashes the weights, which takes seconds for a large model."""
        model = describe_model(self.model, self.name)
        sampler = describe_sampler(self.sampler)
        wanted = self.wanted.as_dict()
        same = ("config_sha256", "weights_sha256", "dtype")
        return {
            "model": model,
            "sampler": sampler,
            "seed": self.seed,
            "chat": self.chat,
            "device": str(self.model.device),
            "versions": describe_versions(),
            "certificate": find_certificate(model["source"]),
            **wanted,
            "fingerprint": {
                "model": {name: model[name] for name in same},
                "sampler": sampler,
                "seed": self.seed,
                "device": self.model.device.type,
                "prompts": hash_json(self.ids),
                "maps": wanted["maps"],
                "norms": wanted["norms"],
            },
        }


def plan_trace(
    model: Any,
    prompts: Any,
    sampler: Sampler,
    *,
    seed: int = 0,
    chat: bool = False,
    name: str | None = None,
    detail: str = "full",
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    every: int = 1,
    maps: Iterable[Sequence[int]] = (),
    norms: bool = True,
    exact: bool = False,
    graph: bool = False,
) -> Plan:
    """Arguments as for `sinklens.trace`."""
    speaker = wrap(model)
    if graph:
        captured(speaker)  # refused now where it cannot be
    given = as_prompts(prompts)
    read_seed(seed)
    read_seed(seed + len(given) - 1)
    ids = [encode_prompt(speaker, prompt, chat=chat) for prompt in given]
    for row in ids:
        read_prompt(speaker, [row])  # refused now, and not when its turn comes
    return Plan(
        model=speaker,
        sampler=sampler,
        prompts=given,
        ids=ids,
        wanted=read_wanted(
            speaker.spec,
            detail=detail,
            layers=layers,
            heads=heads,
            every=every,
            maps=maps,
            norms=norms,
            exact=exact,
        ),
        seed=seed,
        chat=chat,
        name=name,
        graph=graph,
    )
