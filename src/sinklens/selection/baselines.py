"""Other ways to choose tokens, at the counts that a selector kept: what a learnt gate must beat.

Before each gated block the patches are scored and the highest are kept, as many of each image as `counts` says; what is
dropped is gone.

Rankings and their names are in rankings.py; "tome" merges tokens instead until the count is met (tome.py).

`run_ranked` can be trained through: choices have no gradient (but for avit), all else has.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinklens.attention.call import AttentionCall
from sinklens.attention.capture import capturing
from sinklens.attention.observe import intervene
from sinklens.errors import UsageError, choose
from sinklens.kernels.hashing import mix, unit
from sinklens.selection.channel import Channel, lost
from sinklens.selection.codec import Codec, send_uncoded
from sinklens.selection.cost import CostShape, block_macs
from sinklens.selection.rankings import BETA, GAMMA, RANKINGS, Look, class_attention
from sinklens.selection.tome import Merged, merge

BASELINES = (*RANKINGS, "tome")
BEHIND_A_BLOCK = ("key_norm", "key_norm_high", "cls", "tome")  # look at the attention of the block before


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranked:
    """What a baseline computed, and with which tokens; the fields that it shares with Selected mean the same."""

    logits: Float[Tensor, "batch classes"]
    kept: Bool[Tensor, "gate batch patch"]  # tome: patches whose place a token still has
    sent: Int[Tensor, " batch"]  # tokens over the channel, class token included; there is no budget token
    macs: Int[Tensor, " batch"]  # without scores and matching, which are below a hundredth


def run_ranked(
    backbone: Any,
    images: Any,
    counts: Any,
    ranking: str,
    *,
    gated: tuple[int, ...] | None = None,
    seed: int | Int[Tensor, ""] = 0,
    first: int = 0,
    split: int | None = None,
    channel: Channel | None = None,
    codec: Codec | None = None,
    generator: torch.Generator | None = None,
) -> Ranked:
    """Classify images with as many patches behind each gate as `counts` says.

    counts: [gate, batch] or [gate]; `selected.kept.sum(dim=2)` is what a selector kept.
    gated: blocks with a gate before them; None: all but block 0.
    seed, first: "random" draws by seed and image number; `first` is that of images[0].
    split: block behind the channel; None: half of the blocks. channel, codec: what is between; None: a wire.
    """
    choose("baseline", ranking, BASELINES)
    blocks = len(backbone.blocks)
    gated = tuple(range(1, blocks)) if gated is None else tuple(gated)
    split = max(1, blocks // 2) if split is None else split
    if ranking in BEHIND_A_BLOCK and 0 in gated:
        raise UsageError(
            f"baseline {ranking!r} looks at the block before a gate, and block 0 has none; expected gates from 1"
        )
    run = _Run(backbone, images, ranking, seed=seed, first=first)
    table = _read_counts(counts, gates=len(gated), batch=len(run.x), patches=run.patches, device=run.x.device)
    kept, tokens, sent = [], [], None
    with intervene(backbone, run.note) if ranking in BEHIND_A_BLOCK else nullcontext():
        for number, block in enumerate(backbone.blocks):
            if number == split:
                sent = run.send(channel, codec, generator)
            if number in gated:
                run.cut(table[gated.index(number)])
                kept.append(run.on_image())
            tokens.append(run.left() + run.prefix)
            run.x = block(run.x, run.mask())
            run.halt()
        if sent is None:
            sent = run.send(channel, codec, generator)
    return Ranked(
        logits=backbone.head(run.x), kept=torch.stack(kept), sent=sent, macs=_macs(CostShape.of(backbone), tokens)
    )


def _macs(shape: CostShape, tokens: list[Tensor]) -> Int[Tensor, " batch"]:
    total = torch.full_like(tokens[0], shape.image_values * shape.width + shape.width * shape.classes)
    for count in tokens:
        total = total + block_macs(count, width=shape.width, hidden=shape.hidden)
    return total


def _read_counts(
    counts: Any, *, gates: int, batch: int, patches: int, device: torch.device
) -> Int[Tensor, "gate batch"]:
    table = torch.as_tensor(counts, device=device)
    if table.dim() == 1 and len(table) == gates:
        table = table[:, None].expand(-1, batch)
    if table.is_floating_point() or table.dtype == torch.bool or tuple(table.shape) != (gates, batch):
        raise UsageError(
            f"counts are {list(table.shape)} of {table.dtype}; expected whole numbers [{gates} gates, {batch} images], "
            f"or one for each of {gates} gates"
        )
    if capturing():  # whoever captures has asked
        return table.long()
    if bool(((table < 0) | (table > patches)).any()) or bool((table[1:] > table[:-1]).any()):
        raise UsageError(f"counts must be 0 to {patches} and not rise from gate to gate: what is dropped stays dropped")
    return table.long()


class _Run:
    """The tokens of a batch on their way; what is dropped is taken out, rows are padded to the longest."""

    def __init__(self, backbone: Any, images: Any, ranking: str, *, seed: Any, first: int) -> None:
        self.x: Tensor = backbone.embed(images)
        self.prefix: int = backbone.prefix
        self.ranking = ranking
        batch, self.patches = self.x.shape[0], self.x.shape[1] - self.prefix
        device = self.x.device
        self.places = torch.arange(self.patches, device=device).expand(batch, -1)
        self.ends = torch.ones(batch, self.prefix, device=device)  # 0: did not arrive
        self.sizes = torch.ones(batch, self.patches, device=device)  # 0: padding
        self.halting = torch.zeros(batch, self.patches, dtype=torch.float64, device=device)
        numbers = torch.arange(first, first + batch, device=device)
        images_state = mix(mix(torch.zeros_like(numbers) + seed) + numbers)
        self.draws = unit(mix(images_state[:, None] + self.places), bits=24)
        self.call: AttentionCall | None = None
        self._cut = False  # some patches may be hidden

    def note(self, call: AttentionCall) -> AttentionCall:
        """Keeps the attention call of the block that runs, and changes nothing."""
        self.call = call
        return call

    def left(self) -> Int[Tensor, " batch"]:
        return (self.sizes > 0).sum(dim=1)

    def on_image(self) -> Bool[Tensor, "batch patch"]:
        kept = torch.zeros(len(self.x), self.patches, dtype=torch.bool, device=self.x.device)
        return kept.scatter(1, self.places, self.sizes > 0)

    def mask(self) -> Tensor | None:
        """For a block: None where nothing is hidden. Merged tokens weigh as many as they stand for."""
        sizes = torch.cat((self.ends, self.sizes), dim=1)
        hides = self._cut if capturing() else not bool((sizes == 1).all())
        return sizes.log() if hides else None

    def halt(self) -> None:
        """After a block: sigmoid(gamma x_0 - beta) more, in float64, for what saturates must not tie."""
        if self.ranking == "avit":
            self.halting = self.halting + torch.sigmoid(GAMMA * self.x[:, self.prefix :, 0].double() - BETA)

    def cut(self, counts: Int[Tensor, " batch"]) -> None:
        """Down to so many patches an image."""
        self._cut = True
        counts = torch.minimum(counts, self.left())
        if self.ranking == "tome":
            return self._merge(counts)
        scores = RANKINGS[self.ranking](self._look())
        order = scores.masked_fill(self.sizes == 0, -torch.inf).argsort(dim=1, descending=True, stable=True)
        if not capturing():
            order = order[:, : int(counts.max())]
        if self.ranking == "avit":  # 1 in the forward; in the backward, what keeping a token is worth
            self._scale((1 + (scores - scores.detach())).to(self.x.dtype))
        self._take(order)
        self.sizes = (torch.arange(order.shape[1], device=order.device) < counts[:, None]).float()

    def _scale(self, factors: Tensor) -> None:
        head, patches = self.x[:, : self.prefix], self.x[:, self.prefix :]
        self.x = torch.cat((head, patches * factors[..., None]), dim=1)

    def _take(self, order: Int[Tensor, "batch kept"]) -> None:
        head, patches = self.x[:, : self.prefix], self.x[:, self.prefix :]
        patches = patches.gather(1, order[..., None].expand(-1, -1, patches.shape[2]))
        self.x = torch.cat((head, patches), dim=1)
        self.places, self.draws, self.halting = (
            values.gather(1, order) for values in (self.places, self.draws, self.halting)
        )

    def _look(self) -> Look:
        keys = attention = None
        if self.call is not None:
            keys = self.call.key[:, :, self.prefix :]
            attention = class_attention(self.call)[:, self.prefix :]
        tokens = self.x[:, self.prefix :]
        return Look(tokens=tokens, keys=keys, attention=attention, halting=self.halting, draws=self.draws)

    def _merge(self, counts: Int[Tensor, " batch"]) -> None:
        assert self.call is not None
        keys = self.call.key[:, :, self.prefix :].mean(dim=1)
        patches = Merged(tokens=self.x[:, self.prefix :], keys=keys, sizes=self.sizes, places=self.places)
        merged = merge(patches, counts)
        self.x = torch.cat((self.x[:, : self.prefix], merged.tokens), dim=1)
        self.sizes, self.places = merged.sizes, merged.places

    def send(
        self, channel: Channel | None, codec: Codec | None, generator: torch.Generator | None
    ) -> Int[Tensor, " batch"]:
        """All that is left over the channel; how many tokens that was. What does not arrive is gone."""
        sent = self.left() + self.prefix
        if codec is None and channel is None:
            return sent
        if codec is None:
            assert channel is not None
            received = send_uncoded(self.x.float(), channel, generator=generator)
            self.x = received.to(self.x.dtype)
        else:
            symbols = codec.encode(self.x)
            received = symbols if channel is None else channel(symbols, generator=generator)
            self.x = codec.decode(received).to(self.x.dtype)
        arrived = ~lost(received)
        arrived[:, 0].fill_(True)  # an image is never without its class token
        self._cut = True
        self.ends, self.sizes = arrived[:, : self.prefix].float(), self.sizes * arrived[:, self.prefix :]
        return sent
