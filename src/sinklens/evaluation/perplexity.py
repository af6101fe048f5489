"""How well a causal model predicts text while its attention is denied keys.

`masked_nll` gives the negative log-likelihood of the later tokens of each chunk, under a condition (conditions.py).
What runs, and what equals what, is in forced.py.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from sinklens.errors import UsageError, choose
from sinklens.evaluation.conditions import Condition
from sinklens.evaluation.forced import Once, Prompt, at_once, in_steps, read_prompt, unmasked
from sinklens.evaluation.newest import NewestMasking
from sinklens.evaluation.standing import StandingMasking, choose_once, rank_prompt
from sinklens.evaluation.taken import Metered

FIRST = 128
RANKED = ("prompt", "steps")


@dataclass(frozen=True, kw_only=True, eq=False)
class ChunkNLL:
    """One chunk under one condition."""

    losses: Float[np.ndarray, " token"]  # nats, of the tokens `first` and later
    dose: float | None  # removed over largest (taken.py); None where nothing is denied
    removed: float | None  # attention taken from a query, as a share of 1: mean over layers, heads and queries
    keys_removed: float | None  # a head and query

    @property
    def nll(self) -> float:
        """Mean over its tokens, in nats."""
        return float(self.losses.mean())


def masked_nll(
    model: Any,
    chunks: Any,
    condition: Condition,
    *,
    first: int = FIRST,
    clean: int | None = None,
    seed: int = 0,
    ranked: str = "prompt",
    stepwise: bool = False,
) -> list[ChunkNLL]:
    """The tokens `first` and later of every chunk, predicted by a causal model under `condition`.

    chunks: integer ids [chunk, position]. clean: how many tokens the prompt has, which runs without a mask; None: all
    before `first`, and 1 for a text that is under the mask from its beginning. ranked: "prompt", the keys are chosen
    once by the attention inside the prompt; "steps", anew for every token by the one before it, as in generation.
    stepwise: one token at a time even where one forward gives the same; slow.

    The token right after the prompt is predicted by the prompt's last query, which is not masked.
    """
    clean = first if clean is None else clean
    ids = read_chunks(model, chunks, first=first, clean=clean)
    return [
        chunk_nll(
            model, read_prompt(model, row[None], end=clean), condition,
            first=first, number=number, seed=seed, ranked=ranked, stepwise=stepwise,
        )
        for number, row in enumerate(ids)
    ]  # fmt: skip


def chunk_nll(
    model: Any,
    prompt: Prompt,
    condition: Condition,
    *,
    first: int,
    number: int,
    seed: int = 0,
    ranked: str = "prompt",
    stepwise: bool = False,
) -> ChunkNLL:
    """One chunk, whose prompt has run. number: of the chunk; its random draws depend on it and on nothing beside it."""
    choose("ranked", ranked, RANKED)
    scored = slice(first - prompt.end, None)
    settings = condition.intervention(seed=seed, problems=[number])
    if settings is None:
        plain = unmasked(model, prompt)[scored].double().cpu().numpy()
        return ChunkNLL(losses=plain, dose=None, removed=None, keys_removed=None)
    if ranked == "prompt":
        _refuse_for_prompt(condition)
    together, recomputed = not stepwise and runs_at_once(condition, ranked), condition.recomputes()
    lab = _at_once(condition, settings, prompt, ranked) if together else _in_steps(condition, settings, model, ranked)
    metered = Metered(lab, top=condition.top, first=first, newest=not together)
    if together:
        losses = at_once(model, prompt, metered, recomputed=recomputed)
    else:
        losses = in_steps(model, prompt.ids, metered, end=prompt.end, recomputed=recomputed)
    return ChunkNLL(
        losses=losses[scored].double().cpu().numpy(),
        dose=metered.dose,
        removed=metered.removed,
        keys_removed=metered.keys,
    )


def _at_once(condition: Condition, settings: Any, prompt: Prompt, ranked: str) -> StandingMasking | NewestMasking:
    """The intervention for one forward."""
    if not _stands(condition, ranked):
        return NewestMasking(settings, prompt.calls)
    rank_by = condition.rank_by or "received"
    rankings = prompt.received if rank_by == "received" else rank_prompt(prompt.calls, rank_by)
    chosen = settings if condition.act == "mask" else settings.of
    targets = choose_once(chosen, rankings, scope=condition.scope or "head")
    late = condition.recomputes() and condition.queries == "generated"
    return StandingMasking(targets, act=condition.act, start=prompt.end if late else 0)


def _in_steps(condition: Condition, settings: Any, model: Any, ranked: str) -> Any:
    """The intervention for one token at a time: that of generation, told to choose once where it should."""
    lab = settings.start(model)
    if _stands(condition, ranked):
        lab.settings = Once(settings=lab.settings, rank_by=condition.rank_by or "received")
    return lab


def _stands(condition: Condition, ranked: str) -> bool:
    """Whether the keys are chosen once; the first tokens always are."""
    return ranked == "prompt" or condition.choose == "first"


def runs_at_once(condition: Condition, ranked: str) -> bool:
    """Whether one forward after the prompt gives what one token at a time gives (forced.py)."""
    newest_alone = condition.queries == "last" and condition.recomputes()  # a query sees all once it is not the newest
    if condition.act == "mean" or newest_alone or condition.prefill not in (None, "clean"):
        return False
    if _stands(condition, ranked):
        return True
    plain = condition.source in (None, "previous_step", "same_step") and condition.measure in (None, "before")
    own = condition.rank_by in (None, "last_row") and condition.scope in (None, "head", "layer")
    return plain and own and condition.act == "mask" and condition.choose != "stale" and not condition.recomputes()


def read_chunks(model: Any, chunks: Any, *, first: int, clean: int) -> Tensor:
    """Ids as a tensor on the model's device, checked."""
    if not model.spec.causal:
        raise UsageError(
            f"{model.spec.family!r} is not causal: it predicts no next token, and its bound on the likelihood "
            "(sinklens.evaluation.elbo) is no perplexity; choose a causal model"
        )
    ids = torch.as_tensor(chunks, device=model.device)
    if ids.dim() != 2 or ids.is_floating_point():
        raise UsageError(f"chunks have shape {tuple(ids.shape)}, {ids.dtype}; expected integer ids [chunk, position]")
    for name, value in (("first", first), ("clean", clean)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"{name} is {value!r}; expected a number of tokens, 1 or more")
    if not clean <= first <= ids.shape[1] - 2:
        raise UsageError(
            f"clean is {clean}, first is {first} and chunks have {ids.shape[1]} tokens; expected clean <= first, and "
            "two tokens or more from there on"
        )
    return ids.long()


def _refuse_for_prompt(condition: Condition) -> None:
    for name, accepted in (("source", "previous_step"), ("measure", "before")):
        value = getattr(condition, name)
        if value not in (None, accepted):
            raise UsageError(
                f"{name}={value!r} with ranked='prompt': the prompt runs without a mask, and its attention alone "
                f"decides; leave {name} out, or use ranked='steps'"
            )
    if condition.choose == "stale":
        raise UsageError("choose='stale' with ranked='prompt': there is one ranking, which no other is older than")
