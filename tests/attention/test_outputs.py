"""What a head puts out: effective rank and size, against the singular values of A V W_o computed in float64."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl


def by_singular_values(maps: Tensor, values: Tensor, weight: Tensor) -> tuple[float, float]:
    """One head: maps [query, key], values [key, dim], weight [width, dim]."""
    output = maps.double() @ values.double() @ weight.double().T
    squares = torch.linalg.svdvals(output).square()
    return float(squares.sum().square() / squares.square().sum()), float((squares.sum() / len(output)).sqrt())


@pytest.mark.parametrize("padded", [False, True])
def test_rank_and_size_are_those_of_the_singular_values(llama: Any, padded: bool) -> None:
    torch.manual_seed(1)
    ids = torch.randint(3, 60, (2, 12))
    mask = torch.ones_like(ids)
    if padded:
        mask[1, :4] = 0
    caught: list[Tensor] = []

    def catch(call: sl.AttentionCall) -> sl.AttentionCall:
        caught.append(call.value)
        return call

    layers, heads = 2, 4
    maps = [(layer, head) for layer in range(layers) for head in range(heads)]
    with torch.no_grad(), sl.intervene(llama, catch), sl.observe(llama, ranks=True, maps=maps) as seen:
        llama(ids, attention_mask=mask)
    assert seen.output_rank.shape == seen.output_size.shape == (layers, 2, heads)
    for layer in range(layers):
        weight = llama.model.layers[layer].self_attn.o_proj.weight.detach()
        slices = weight.view(weight.shape[0], heads, -1)
        for row in range(2):
            real = mask[row].bool()
            for head in range(heads):
                values = caught[layer][row, head // 2]
                rank, size = by_singular_values(seen.maps[layer, head][row][real], values, slices[:, head])
                assert float(seen.output_rank[layer, row, head]) == pytest.approx(rank, rel=1e-4)
                assert float(seen.output_size[layer, row, head]) == pytest.approx(size, rel=1e-4)


def test_a_head_that_tells_all_queries_the_same_has_rank_one(golden: Path) -> None:
    model = sl.load(golden / "llada")

    def first_key_only(call: sl.AttentionCall) -> sl.AttentionCall:
        return call.keep_keys(call.where_keys() == 0)

    with torch.no_grad(), sl.intervene(model, first_key_only), sl.observe(model, ranks=True) as seen:
        model(torch.tensor([[5, 6, 7, 8, 9]]))
    torch.testing.assert_close(seen.output_rank, torch.ones_like(seen.output_rank), atol=1e-4, rtol=0)


def test_ranks_are_measured_only_when_asked_for(llama: Any) -> None:
    with torch.no_grad(), sl.observe(llama) as seen:
        llama(torch.tensor([[5, 6, 7]]))
    with pytest.raises(sl.SinklensError, match="ranks=True"):
        _ = seen.output_rank
