"""How likely a model finds a text behind a context: exactly for a causal model, as an ELBO for a diffusion model.

    exact       causal, unmasked: sum over tokens i of log p(token i | context, tokens before i), one pass
    whole_text  causal, under a mask: the same sum, where the keys denied were chosen by the whole text
    elbo        diffusion: elbo.py, a lower bound by random masks, with its own error; never to be set beside the others

Under a condition there is no step before from which sinks could be known. They are ranked in a pass over the same
input in which nothing is masked (source="same_input"), by what they receive from all its queries, and denied to all of
them: a causal model has no newest token and no cache here, so that all keys and values are recomputed under the mask.
Later tokens so decide which keys earlier ones are denied. The chain rule does not hold then: log p(a b) is not log p(a)
+ log p(b | a), each ranked on its own text. Random controls draw by the tokens of the row, so that a text has the same
draws in every batch.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinklens.attention.clock import StepNumber
from sinklens.attention.observe import intervene
from sinklens.errors import UsageError
from sinklens.evaluation.conditions import Condition, mixed_seed
from sinklens.evaluation.elbo import DRAWS, elbo
from sinklens.sampling.canvas import mask_id_of, predict
from sinklens.sampling.special_ids import fill_id

Pair = tuple[Sequence[int], Sequence[int]]  # ids of a context and of what follows it, neither empty
NEED_STEPS = ("stale", "first")  # choices that look back on earlier steps of a generation
# What a causal model does in a generation and not in one pass, and why not.
NOT_CAUSAL = (
    ("keys", "cached", "keys and values of the whole text are recomputed under the mask"),
    ("queries", "generated", "no token is generated, and nobody would be denied anything"),
    ("queries", "last", "no query is newer than the others, and all are denied the keys"),
)


@dataclass(frozen=True, kw_only=True)
class Likelihood:
    """log p(continuation | context) in nats: exact, under a mask, or a lower bound with its Monte-Carlo error."""

    value: float
    greedy: bool  # greedy decoding would have written it
    error: float | None = None  # standard error of an ELBO; None: no ELBO, or a single draw


@dataclass(kw_only=True)
class DoseSum:
    """What the interventions of many passes removed, and the most they could have."""

    removed: float = 0.0
    largest: float = 0.0

    @contextmanager
    def of(self, model: Any, intervention: Any | None) -> Iterator[None]:
        """A pass under an intervention, or under none; what it removed is added at the end."""
        if intervention is None:
            yield
            return
        with intervene(model, intervention) as lab:
            yield
        self.add(lab)

    def add(self, lab: Any) -> None:
        for dose in lab.doses:
            if dose.masked and dose.largest > 0:
                self.removed += dose.removed
                self.largest += dose.largest

    @property
    def ratio(self) -> float | None:
        return self.removed / self.largest if self.largest else None


def in_one_pass(condition: Condition, *, causal: bool) -> Condition:
    """The condition as it holds where nothing is generated: ranked on the same input, from the first pass on."""
    if condition.choose == "none":
        return condition
    if condition.choose in NEED_STEPS:
        raise UsageError(
            f"condition {str(condition)!r} looks back on earlier steps, and a likelihood has none; expected sinks, "
            "random, next, mass, position or other_head"
        )
    for name, refused in (("source", "previous_step"), ("prefill", "clean")):
        if getattr(condition, name) == refused:
            raise UsageError(
                f"{name}={refused} in condition {str(condition)!r}: a likelihood is one pass, and nothing would be "
                f"masked in it; leave {name} out"
            )
    source, rank_by = condition.source or "same_input", condition.rank_by or "received"
    held = replace(condition, source=source, rank_by=rank_by, prefill="masked")
    if not causal:
        return held
    for name, refused, why in NOT_CAUSAL:
        if getattr(condition, name) == refused:
            raise UsageError(
                f"{name}={refused} in condition {str(condition)!r}: in the likelihood of a causal model {why}; leave "
                f"{name} out"
            )
    return replace(held, queries=condition.queries or "all", keys="recomputed")


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """A model under a condition, asked for likelihoods."""

    model: Any  # a LanguageModel that is a module, as from `sinklens.load`
    condition: Condition = field(default_factory=Condition)
    batch: int = 1  # rows a pass
    draws: int = DRAWS  # of an ELBO
    seed: int = 0  # of an ELBO's masks and of random controls
    doses: DoseSum = field(default_factory=DoseSum)

    def __post_init__(self) -> None:
        for name in ("batch", "draws"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; expected at least 1")
        in_one_pass(self.condition, causal=bool(self.model.spec.causal))

    @property
    def held(self) -> Condition:
        """The condition as it holds here."""
        return in_one_pass(self.condition, causal=bool(self.model.spec.causal))

    @property
    def kind(self) -> str:
        """What its values are: "exact", "whole_text" or "elbo"."""
        if not self.model.spec.causal:
            return "elbo"
        return "exact" if self.condition.choose == "none" else "whole_text"

    @property
    def caveat(self) -> str | None:
        """What whoever reads its values has to know."""
        if self.kind == "elbo":
            return (
                f"the likelihoods of this diffusion model are ELBOs of {self.draws} draws: lower bounds, not to be set "
                "beside the likelihood or perplexity of an autoregressive model"
            )
        if self.kind == "whole_text":
            return (
                f"under the mask {self.condition} keys are ranked on the whole text and recomputed: the likelihoods "
                "are not exact, and the chain rule does not hold"
            )
        return None

    def score(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Likelihood]]:
        """The number of a pair and its likelihood, as soon as it is known; long ones come first."""
        for number, (context, continuation) in enumerate(pairs):
            if not context or not continuation:
                raise UsageError(f"pair {number} has an empty part; expected ids on both sides, bos for no context")
        if self.model.spec.causal:
            yield from self._score_causal(pairs)
            return
        for number in sorted(range(len(pairs)), key=lambda number: -sum(map(len, pairs[number]))):
            yield number, self._bound(*pairs[number])

    def _score_causal(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Likelihood]]:
        """Pairs that differ in their last token alone, such as the letters of a choice, share their row."""
        asked: dict[tuple[int, ...], list[int]] = {}
        for number, (context, continuation) in enumerate(pairs):
            asked.setdefault((*context, *continuation)[:-1], []).append(number)
        rows = sorted(asked, key=len, reverse=True)
        for start in range(0, len(rows), self.batch):
            some = rows[start : start + self.batch]
            ids, padding = self._padded(some)
            with self._masked(ids, padding), torch.no_grad():
                logits = predict(self.model, ids, padding, StepNumber(0, canvas=ids))
            for row, inputs in enumerate(some):
                for number in asked[inputs]:
                    yield number, _read_off(logits[row], pairs[number][1])

    def _padded(
        self, rows: Sequence[tuple[int, ...]]
    ) -> "tuple[Int[Tensor, 'row position'], Int[Tensor, 'row position'] | None]":
        """On the left: the last column is the newest token of every row."""
        width, fill = len(rows[0]), fill_id(self.model.spec)
        ids = torch.tensor([[fill] * (width - len(row)) + list(row) for row in rows], device=self.model.device)
        if len(rows[-1]) == width:
            return ids, None
        real = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        return ids, torch.tensor(real, device=self.model.device)

    def _bound(self, context: Sequence[int], continuation: Sequence[int]) -> Likelihood:
        """The ELBO of a diffusion model."""
        whole = torch.tensor([*context, *continuation], device=self.model.device)
        length = len(continuation)

        def log_probabilities(masks: Bool[np.ndarray, "draw token"]) -> Float[np.ndarray, "draw token"]:
            found = self._predictions(whole, torch.from_numpy(masks)).log_softmax(-1)
            at = whole[-length:].expand(len(masks), -1)[..., None]
            return found.gather(-1, at)[..., 0].double().cpu().numpy()

        bound = elbo(log_probabilities, length, draws=self.draws, seed=self.seed, batch=self.batch)
        return Likelihood(value=bound.value, greedy=self._writes(whole, length), error=bound.error)

    def _predictions(
        self, whole: Int[Tensor, " position"], masks: Bool[Tensor, "draw token"]
    ) -> Float[Tensor, "draw token vocab"]:
        """Logits of the last tokens, those of `masks` hidden from the model. Masks are places, not the mask id."""
        draws, length = masks.shape
        masked = torch.zeros((draws, len(whole)), dtype=torch.bool, device=whole.device)
        masked[:, -length:] = masks.to(whole.device)
        canvas = whole.expand(draws, -1).masked_fill(masked, mask_id_of(self.model, "an ELBO"))
        with self._masked(canvas, None):
            logits = predict(self.model, canvas, None, StepNumber(0, canvas=canvas, masked=masked))
        return logits[:, -length:].float()

    def _writes(self, whole: Int[Tensor, " position"], length: int) -> bool:
        """Whether a diffusion model, which commits the most confident token of all first, writes these. It ends with
        the first that differs, mostly at once."""
        masked = torch.ones((1, length), dtype=torch.bool)
        for _ in range(length):
            chances, tokens = self._predictions(whole, masked)[0].softmax(-1).max(-1)
            surest = int(chances.cpu().masked_fill(~masked[0], -1.0).argmax())
            if int(tokens[surest]) != int(whole[surest - length]):
                return False
            masked[0, surest] = False
        return True

    @contextmanager
    def _masked(
        self, ids: Int[Tensor, "row position"], padding: "Int[Tensor, 'row position'] | None"
    ) -> Iterator[None]:
        """The condition over one pass; the draws of a row follow from its ids."""
        real = torch.ones_like(ids) if padding is None else padding
        drawn = [mixed_seed(*row[mask.bool()].tolist()) for row, mask in zip(ids, real, strict=True)]
        with self.doses.of(self.model, self.held.intervention(seed=self.seed, problems=drawn)):
            yield


def _read_off(logits: Float[Tensor, "position vocab"], continuation: Sequence[int]) -> Likelihood:
    """Of a row whose last logits predict the last token of the continuation."""
    tokens = torch.tensor(continuation, device=logits.device)
    chances = logits[-len(continuation) :].float().log_softmax(-1)
    value = chances.gather(-1, tokens[:, None]).sum(dtype=torch.float64)
    return Likelihood(value=float(value), greedy=bool((chances.argmax(-1) == tokens).all()))
