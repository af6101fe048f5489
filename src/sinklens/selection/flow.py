"""The tokens of a batch on their way through gates and channel.

The sequence is [prefix | patches | budget]. Dropped patches stay where they are and nobody sees them, or they are taken
out: then the patches that are left move together, padded to the longest row of the batch.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinklens.attention.capture import capturing
from sinklens.selection.channel import Channel, lost
from sinklens.selection.codec import Codec, send_uncoded
from sinklens.selection.gates import Gate, log_mask


@dataclass(frozen=True, kw_only=True, eq=False)
class Passed:
    """What happened at one gate, in places of the image."""

    kept: Bool[Tensor, "batch patch"]
    scores: Float[Tensor, "batch patch"]
    shares: Float[Tensor, " batch"]


class Flow:
    """Tokens, and what is left of them."""

    def __init__(self, tokens: Float[Tensor, "batch token width"], *, prefix: int) -> None:
        self.x, self.prefix = tokens, prefix
        self.hard = True  # gates' gradients enter through attention; else through features
        self.patches = tokens.shape[1] - prefix  # of the image
        self.budget = False  # the budget token is in the sequence
        self._some_dropped = self._some_lost = False  # the mask may have zeros: by gates, by the channel
        self.mask = torch.ones(tokens.shape[:2], device=tokens.device)  # 0: dropped; carries the gates' gradient
        self.places = torch.arange(self.patches, device=tokens.device).expand(len(tokens), -1)

    @property
    def _inner(self) -> slice:
        """Where the patches are in the sequence."""
        return slice(self.prefix, self.prefix + self.places.shape[1])

    @property
    def scored(self) -> Float[Tensor, "batch left width"]:
        """The patches that a gate looks at."""
        return self.x[:, self._inner]

    def left(self) -> Int[Tensor, " batch"]:
        """Patches left in each row."""
        return (self.mask[:, self._inner] > 0).sum(dim=1)

    def visible(self) -> Bool[Tensor, "batch token"] | Float[Tensor, "batch token"] | None:
        """The mask for a block: with a gradient where gates are hard and learn, None where all is seen."""
        if self.hard and self.mask.requires_grad and torch.is_grad_enabled():
            return log_mask(self.mask)
        return self.mask > 0 if self._some_dropped or self._some_lost else None

    def join(self, budget: Float[Tensor, "batch width"]) -> None:
        """The budget token enters the sequence, at its end."""
        self.x = torch.cat((self.x, budget.to(self.x.dtype)[:, None]), dim=1)
        self.mask = torch.cat((self.mask, torch.ones_like(self.mask[:, :1])), dim=1)
        self.budget = True

    def pass_gate(
        self, gate: Gate, scores: Float[Tensor, "batch left"], *, threshold: Float[Tensor, " batch"]
    ) -> Passed:
        """Drop what the gate drops, of what was left."""
        inner = self._inner
        before = self.mask[:, inner]
        m, z = gate.masks(scores, threshold)
        after = before * m
        ends = self.mask[:, : inner.start], self.mask[:, inner.stop :]
        self.mask = torch.cat((ends[0], after, ends[1]), dim=1)
        self.hard, self._some_dropped = gate.mode == "hard", True
        if not self.hard:
            self.x = torch.cat(
                (self.x[:, : inner.start], self.x[:, inner] * m[..., None].to(self.x.dtype), self.x[:, inner.stop :]),
                dim=1,
            )
        z = torch.where(before > 0, z, -torch.inf)
        return Passed(
            kept=self._on_image(after > 0, False),
            scores=self._on_image(z.detach(), -torch.inf),
            shares=after.sum(dim=1) / self.patches,
        )

    def _on_image(self, values: Tensor, missing: float | bool) -> Tensor:
        """Values of the patches that are in the sequence, put where these are in the image."""
        if values.shape[1] == self.patches:  # never taken out, or none was dropped: still in order
            return values
        return values.new_full((len(values), self.patches), missing).scatter(1, self.places, values)

    def take_out(self) -> None:
        """Remove dropped patches; rows with fewer left than the longest keep some, unseen, as padding."""
        inner = self._inner
        alive = self.mask[:, inner] > 0
        shortest, longest = (int(count) for count in alive.sum(dim=1).aminmax())
        self._some_dropped = shortest < longest
        if longest == alive.shape[1]:
            return
        order = torch.sort((~alive).to(torch.int8), dim=1, stable=True).indices[:, :longest]
        self.places = self.places.gather(1, order)
        patches = self.x[:, inner].gather(1, order[..., None].expand(-1, -1, self.x.shape[-1]))
        mask = self.mask[:, inner].gather(1, order)
        self.x = torch.cat((self.x[:, : inner.start], patches, self.x[:, inner.stop :]), dim=1)
        self.mask = torch.cat((self.mask[:, : inner.start], mask, self.mask[:, inner.stop :]), dim=1)

    def send(self, channel: Channel | None, codec: Codec | None, *, generator: torch.Generator | None) -> None:
        """All tokens over the channel; those of which nothing arrives are gone, as if dropped.

        Dropped tokens are in the batch but not sent: nobody sees what becomes of them.
        """
        if codec is None:
            if channel is not None:
                received = send_uncoded(self.x.float(), channel, generator=generator)
                self._lose(lost(received))
                self.x = received.to(self.x.dtype)
            return
        symbols = codec.encode(self.x)
        received = symbols if channel is None else channel(symbols, generator=generator)
        if channel is not None:
            self._lose(lost(received))
        self.x = codec.decode(received).to(self.x.dtype)

    def _lose(self, gone: Bool[Tensor, "batch token"]) -> None:
        gone = gone.clone()
        gone[:, 0].fill_(False)  # an image is never without its class token
        if capturing() or bool(gone.any()):
            self._some_lost = True
            self.mask = self.mask * ~gone
