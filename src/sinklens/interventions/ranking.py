"""Which keys stand out at a step, and what denying them to queries means."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinklens.attention.call import AttentionCall, Site
from sinklens.attention.capture import capturing
from sinklens.interventions.views import views
from sinklens.kernels.received import Received, received_of
from sinklens.kernels.uniform import Uniform
from sinklens.sinks.detect import detect_sinks

Targets = Int[Tensor, "batch head top"]  # canvas positions, highest rank first; -1: there is none


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranking:
    """The keys of one call and how much attention each gets, for the choice of what the next step is denied.

    The head axis is 1 where heads are ranked together.
    """

    site: Site
    scores: Float[Tensor, "batch head key"]
    expected: Float[Tensor, "batch heads_or_1 key"]  # what uniform attention would give
    viewers: Float[Tensor, "batch heads_or_1 key"]
    candidates: Bool[Tensor, "batch some_heads key"]  # real, and visible to a query that counts
    positions: Int[Tensor, " key"]
    anchor: Int[Tensor, " batch"]  # where the model is writing: the block, the first mask, or the newest query
    mask_state: Bool[Tensor, "batch key"] | None = None  # None: nothing is masked, or nobody says so
    least_viewers: int = 1  # a key that fewer queries see is never above a threshold
    clock: Int[Tensor, ""] | None = None  # the step's number, where a card runs the step alone

    def highest(self, count: int) -> Targets:
        """The `count` highest candidates of every head; of equals, the lower position comes first."""
        order = self.positions.argsort()
        scores = torch.where(self.candidates, self.scores, -torch.inf)[..., order]
        found = scores.sort(dim=-1, descending=True, stable=True)
        values, index = found.values[..., :count], found.indices[..., :count]
        return self.positions[order][index].masked_fill(values == -torch.inf, -1)

    def above(self, epsilon: float) -> Targets:
        """All candidates whose fair share exceeds the mean of the others by more than epsilon, highest score first."""
        found = detect_sinks(
            torch.where(self.candidates, self.scores, torch.nan),
            self.expected,
            epsilon,
            min_viewers=self.least_viewers,
            viewers=self.viewers,
        )
        return replace(self, candidates=found).highest(max(1, int(found.sum(-1).max())))

    def marks(self, targets: Targets) -> Bool[Tensor, "batch head key"]:
        """True at the keys that are targets."""
        return ranks(targets, self.positions) >= 0

    def index_of(self, targets: Targets) -> Int[Tensor, "batch head top"]:
        """Which key each target is, by its place in the call; -1: none."""
        same = targets[..., None] == self.positions
        return torch.where(same.any(-1), same.int().argmax(-1), -1)

    def pooled(self) -> "Ranking":
        """All heads as one."""
        return replace(
            self,
            scores=self.scores.mean(1, keepdim=True),
            expected=self.expected.mean(1, keepdim=True),
            viewers=self.viewers.amax(1, keepdim=True),
            candidates=self.candidates.any(1, keepdim=True),
        )


def merge(layers: Sequence[Ranking]) -> Ranking:
    """Pooled rankings of several layers as one, over the canvas: layers may have forgotten different keys."""
    first = layers[0]
    width = max(int(layer.positions.max()) for layer in layers) + 1

    def add(name: str) -> Tensor:
        shape = (*first.scores.shape[:2], width)
        parts = [
            getattr(layer, name).new_zeros(shape).index_copy(-1, layer.positions, getattr(layer, name))
            for layer in layers
        ]
        return torch.stack(parts).sum(0)

    state = None
    if first.mask_state is not None:
        rows = first.mask_state.shape[0]
        state = first.mask_state.new_zeros((rows, width)).index_copy(-1, first.positions, first.mask_state)
    return replace(
        first,
        scores=add("scores"),
        expected=add("expected"),
        viewers=add("viewers") / len(layers),
        candidates=add("candidates") > 0,
        positions=torch.arange(width, device=first.positions.device),
        mask_state=state,
    )


def first_of(targets: Targets, counts: Int[Tensor, "batch head"]) -> Targets:
    """Only the first `counts` targets of every head."""
    places = torch.arange(targets.shape[-1], device=targets.device)
    return targets.masked_fill(places >= counts[..., None], -1)


def attention_paid(call: AttentionCall, *, visibility: Uniform | None = None) -> Received:
    """Attention received from the real queries of a call. `visibility`: who sees what, where it is known already."""
    codes = None if call.real_queries is None else call.real_queries.int() - 1  # padding: -1, else group 0
    return received_of(call.scores, codes=codes, expected=visibility)


def candidates(call: AttentionCall, paid: Received) -> Bool[Tensor, "batch heads_or_1 key"]:
    seen = paid.viewers > 0
    return seen if call.real_keys is None else seen & call.real_keys[:, None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Denial:
    """Keys taken from the queries of a call. A query that would be left with nothing keeps the lowest ranked."""

    listed: Bool[Tensor, "batch head key"]
    spared: Bool[Tensor, "batch head rows key"] | None  # None: no query needs to be
    each: int | None = None  # in a graph, where nothing can be counted: so many of every head, if that is sure

    @property
    def hidden(self) -> Bool[Tensor, "batch head rows_or_1 key"]:
        hidden = self.listed[:, :, None]
        return hidden if self.spared is None else hidden & ~self.spared


def deny(call: AttentionCall, targets: Targets) -> Denial:
    """Take the keys at `targets` from every query of `call`; a target that is not among its keys is no loss."""
    keys, top = call.key.shape[2], targets.shape[-1]
    rank = ranks(targets, call.where_keys(), width=keys if call.key_positions is None else None)
    listed = rank >= 0
    if call.mask is None and not call.is_causal and top < keys:  # all see more than can be taken
        sure = capturing() and call.real_keys is None and 2 * top <= keys
        return Denial(listed=listed, spared=None, each=top if sure else None)
    seen = views(call)
    starved = seen.any(-1) & ~(seen & ~listed[:, :, None]).any(-1)
    if not capturing() and not bool(starved.any()):
        return Denial(listed=listed, spared=None)
    seen_ranks = torch.where(seen, rank[:, :, None], -1)
    kept = seen & (rank[:, :, None] == seen_ranks.amax(-1, keepdim=True))
    return Denial(listed=listed, spared=starved[..., None] & kept)


def ranks(
    targets: Targets, positions: Int[Tensor, " key"], *, width: int | None = None
) -> Int[Tensor, "batch head key"]:
    """The rank of every key among the targets, from 0; -1 for the others. width: positions are below it, if known."""
    if width is None:
        width = int(torch.maximum(targets.amax(), positions.amax())) + 1
    canvas = targets.new_full((*targets.shape[:2], width + 1), -1)
    slots = targets.masked_fill((targets < 0) | (targets > width), width)  # a slot that no key reads
    canvas.scatter_(-1, slots, torch.arange(targets.shape[-1], device=targets.device).expand_as(targets))
    return canvas[..., positions]
