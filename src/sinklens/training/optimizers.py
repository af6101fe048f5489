"""AdamW, or Muon for the matrices of the blocks: momentum made orthogonal (Jordan et al., 2024).

torch.optim.Muon takes one matrix at a time: some thousand small kernels a step for a network of this size. Here all
matrices of one shape are one batch.
"""

from collections import defaultdict
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinklens.errors import choose

NAMES = ("adamw", "muon")
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the Newton-Schulz iteration


def make_optimizers(
    network: nn.Module, name: str, *, lr: float, matrix_lr: float, weight_decay: float
) -> list[torch.optim.Optimizer]:
    """Weight decay is for the matrices of the blocks alone: not for the embedding, norms and biases."""
    choose("optimizer", name, NAMES)
    named = list(network.named_parameters())
    matrices = [value for key, value in named if value.dim() == 2 and key.startswith("blocks.")]
    others = [value for key, value in named if not (value.dim() == 2 and key.startswith("blocks."))]
    fused = next(network.parameters()).is_cuda
    settings: dict[str, Any] = {"lr": lr, "betas": (0.9, 0.95), "fused": fused}
    if name == "muon":
        return [
            Muon(matrices, lr=matrix_lr, weight_decay=weight_decay),
            torch.optim.AdamW(others, weight_decay=0.0, **settings),
        ]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [torch.optim.AdamW(groups, **settings)]


def orthogonal(matrices: Float[Tensor, "batch out in"]) -> Float[Tensor, "batch out in"]:
    """About U V^T of each matrix U S V^T: singular values end between 0.7 and 1.2."""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = (x.mT if tall else x).to(matrices.dtype)
    return result


class Muon(torch.optim.Optimizer):
    """w <- (1 - lr decay) w - lr sqrt(max(1, out / in)) orthogonal(nesterov momentum of the gradient)."""

    def __init__(
        self, params: list[nn.Parameter], *, lr: float, weight_decay: float = 0.0, momentum: float = 0.95
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            alike: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                alike[parameter.shape].append(parameter)
            for (out, in_), parameters in alike.items():
                gradients = torch.stack([p.grad for p in parameters if p.grad is not None])
                state = self.state[parameters[0]]
                momentum = state.setdefault("momentum", torch.zeros_like(gradients))
                momentum.lerp_(gradients, 1 - group["momentum"])
                update = orthogonal(gradients.lerp(momentum, group["momentum"])) * max(1.0, out / in_) ** 0.5
                weights: list[Tensor] = list(parameters)
                torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(weights, list(update.unbind()), alpha=-group["lr"])
