"""Muon against its definition, and who is decayed."""

import pytest
import torch
from torch import nn

from sinklens.errors import UsageError
from sinklens.training.network import Network
from sinklens.training.optimizers import Muon, make_optimizers, orthogonal
from training.small import small_recipe


@pytest.mark.parametrize("shape", [(8, 8), (16, 8), (8, 16)])
def test_orthogonal_keeps_the_singular_vectors(shape: tuple[int, int]) -> None:
    matrix = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    made = orthogonal(matrix)
    inner = u.mT @ made @ v.mT  # diagonal: the new singular values
    values = torch.diagonal(inner, dim1=1, dim2=2)
    assert float((inner - torch.diag_embed(values)).abs().max()) < 1e-4
    assert float(values.min()) > 0.3
    assert float(values.max()) < 1.3


def test_muon_steps_against_the_gradient_alike_in_every_matrix() -> None:
    """Matrices of one shape are updated together; each gets what it would get alone."""
    start = [torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    gradients = [torch.randn(6, 4, generator=torch.Generator().manual_seed(9 + seed)) for seed in range(3)]

    def run(numbers: list[int]) -> list[torch.Tensor]:
        weights = [nn.Parameter(start[number].clone()) for number in numbers]
        optimizer = Muon(weights, lr=0.1, weight_decay=0.5)
        for _ in range(2):
            for weight, number in zip(weights, numbers, strict=True):
                weight.grad = gradients[number].clone()
            optimizer.step()
        return [weight.detach() for weight in weights]

    together = run([0, 1, 2])
    for number in range(3):
        torch.testing.assert_close(run([number])[0], together[number])
    first = nn.Parameter(start[0].clone())
    optimizer = Muon([first], lr=0.1, weight_decay=0.5)
    first.grad = gradients[0].clone()
    optimizer.step()
    update = orthogonal(gradients[0][None])[0] * (6 / 4) ** 0.5  # one step: momentum points where the gradient does
    torch.testing.assert_close(first.detach(), start[0] * 0.95 - 0.1 * update, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_only_matrices_of_the_blocks_are_decayed(name: str) -> None:
    network = Network(small_recipe("dream").shape.transformer("dream"), causal=False, seed=0)
    optimizers = make_optimizers(network, name, lr=0.1, matrix_lr=0.1, weight_decay=0.5)
    named = {id(value): key for key, value in network.named_parameters()}
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    decayed = {named[id(value)] for group in groups if group["weight_decay"] for value in group["params"]}
    assert decayed == {
        key for key in named.values() if key.startswith("blocks.") and key.endswith("weight") and "norm" not in key
    }
    assert sum(len(group["params"]) for group in groups) == len(named)


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown optimizer 'sgd'; expected one of 'adamw', 'muon'"):
        make_optimizers(nn.Linear(2, 2), "sgd", lr=0.1, matrix_lr=0.1, weight_decay=0.0)
