"""From the name on a command line to a model and its sampler: first what is cheap to refuse, then the weights."""

import time
from dataclasses import dataclass
from typing import Any

from sinklens.cli.interrupts import import_for
from sinklens.cli.samplers import SAMPLERS, SamplerOptions, build_sampler
from sinklens.models.catalog import Located, locate


@dataclass(frozen=True, kw_only=True)
class Found:
    """A checkpoint on this machine and the sampler it will run with; no weights yet."""

    name: str
    sampler: Any
    revision: str | None
    trust_remote_code: bool

    def load(self, *, device: str | None, dtype: str | None) -> tuple[Any, Any]:
        """The model and the sampler."""
        from sinklens.cli.output import detail, quiet_unless_terminal
        from sinklens.models.load import load
        from sinklens.recording.identity import dtype_of

        began = time.monotonic()
        with quiet_unless_terminal():
            model = load(
                self.name,
                device=device or _best_device(),
                dtype=dtype,
                revision=self.revision,
                trust_remote_code=self.trust_remote_code,
            )
        spec, seconds = model.spec, time.monotonic() - began
        detail(f"{spec.source}: {spec.family}, {spec.layers} layers x {spec.heads} heads, loaded in {seconds:.1f} s")
        detail(f"device {model.device}, dtype {dtype_of(model)}")
        return model, self.sampler


def load_model(
    name: str, *, device: str | None, dtype: str | None, revision: str | None, trust_remote_code: bool
) -> Any:
    """A model alone, for commands that choose its sampler themselves."""
    found = find_model(name, SamplerOptions(), revision=revision, trust_remote_code=trust_remote_code)
    return found.load(device=device, dtype=dtype)[0]


def find_model(name: str, sampling: SamplerOptions, *, revision: str | None, trust_remote_code: bool) -> Found:
    """Locate (or download) a checkpoint and check the sampler's settings for its family."""
    from sinklens.cli.output import quiet_unless_terminal

    with quiet_unless_terminal():
        located = locate(name, revision=revision, code=trust_remote_code)
    sampler = build_sampler(_read_family(located), sampling)
    return Found(name=name, sampler=sampler, revision=revision, trust_remote_code=trust_remote_code)


def _read_family(located: Located) -> str:
    """The family by config.json alone; a model that cannot be generated from is refused."""
    from sinklens.cli.checkpoint import refuse_what_cannot_speak

    fields = import_for(located)
    refuse_what_cannot_speak(located, fields)
    model_type = str(fields.values.get("model_type"))
    return model_type.lower() if model_type.lower() in SAMPLERS else model_type


def _best_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
