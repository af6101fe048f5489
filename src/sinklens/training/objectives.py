"""What each family is trained to do, as one form: inputs, where to predict, what, and with what weight.

    autoregressive  every token from those before it
    LLaDA           t ~ U(0, 1) for each row, each open position masked with probability t,
                    loss = sum over masked of w cross-entropy / t, over the sum of w over open positions
    Dream           the same, but the output at p predicts position p + 1

Open positions, those of weight w > 0, are those that may be masked: all but bos in natural text, the answer and what
follows it in a task. The eos that fill a row are many and soon learned: they may weigh less.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.training.network import Network, Rotation

LEAST_RATE = 1e-3  # of masking: 1 / t stays bounded
ROOM = 0.56  # of the positions of a batch are predicted at most: rates are spread evenly, so about half are masked


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """What a step predicts: `targets[i]` from the output at flat position `where[i]`, weighted."""

    inputs: Int[Tensor, "row position"]
    where: Int[Tensor, " predicted"]
    targets: Int[Tensor, " predicted"]
    weights: Float[Tensor, " predicted"]  # sums to about one


def next_token(ids: Int[Tensor, "row position"], importance: Float[Tensor, "row position"]) -> Batch:
    """Every token that counts from those before it."""
    places = torch.arange(ids.numel(), device=ids.device).view_as(ids)
    weights = importance[:, 1:]
    return Batch(
        inputs=ids,
        where=places[:, :-1].flatten(),
        targets=ids[:, 1:].flatten(),
        weights=(weights / weights.sum()).flatten(),
    )


def masked_diffusion(
    ids: Int[Tensor, "row position"],
    importance: Float[Tensor, "row position"],
    *,
    mask_id: int,
    shift: bool,
    draws: torch.Generator,
    most: float = 1.0,
) -> Batch:
    """Masked tokens from all others. `most`: the highest rate of masking, below 1 while a model is being adapted."""
    rows = ids.shape[0]
    spread = torch.arange(rows, device=ids.device) + torch.rand(1, generator=draws, device=ids.device)
    rate = (LEAST_RATE + (most - LEAST_RATE) * (spread / rows % 1.0))[:, None]
    masked = (importance > 0) & (torch.rand(ids.shape, generator=draws, device=ids.device) < rate)
    weights = (masked * importance / rate / importance.sum()).flatten()
    # A fixed number of places keeps one compiled graph; those beyond the masked ones have weight 0.
    where = torch.argsort(masked.flatten().byte(), descending=True, stable=True)[: int(ROOM * ids.numel())]
    return Batch(
        inputs=ids.masked_fill(masked, mask_id),
        where=where - 1 if shift else where,  # bos is never open, so the place before is of the same row
        targets=ids.flatten()[where],
        weights=weights[where],
    )


def loss_of(network: Network, batch: Batch, rotation: Rotation) -> Float[Tensor, ""]:
    """The weighted cross-entropy, in float32."""
    hidden = network(batch.inputs, rotation).flatten(0, 1)[batch.where]
    logits = F.linear(hidden, network.embed.weight)
    losses = F.cross_entropy(logits.float(), batch.targets, reduction="none")
    return (losses * batch.weights).sum()
