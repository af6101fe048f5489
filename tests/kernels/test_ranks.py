"""Effective rank and size of what heads put out, against singular values in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sinklens.kernels.norms import Gram
from sinklens.kernels.ranks import RankAndSize, rank_and_size

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
BATCH, HEADS, WIDTH = 2, 3, 40


def made(
    seed: int, *, dtype: torch.dtype, device: str, queries: int, dims: int, padded: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Output, strided as in models; the slices of a projection; which queries are real."""
    draws = torch.Generator().manual_seed(seed)
    output = torch.randn(BATCH, queries, HEADS, dims, generator=draws).transpose(1, 2)
    weight = torch.randn(HEADS, WIDTH, dims, generator=draws)
    real = torch.rand(BATCH, queries, generator=draws) < 0.7
    real[:, -1] = True
    return output.to(device, dtype), weight.to(device), real.to(device) if padded else None


def gram_of(weight: Tensor) -> Gram:
    return Gram(whole=weight.transpose(1, 2) @ weight)


def check(found: RankAndSize, output: Tensor, weight: Tensor | None, real: Tensor | None) -> None:
    for row in range(BATCH):
        for head in range(HEADS):
            states = output[row, head].double() if real is None else output[row, head][real[row]].double()
            put = states if weight is None else states @ weight[head].double().T
            squares = torch.linalg.svdvals(put).square()
            rank, size = squares.sum().square() / squares.square().sum(), (squares.sum() / len(put)).sqrt()
            assert float(found[0][row, head]) == pytest.approx(float(rank), rel=2e-5)
            assert float(found[1][row, head]) == pytest.approx(float(size), rel=2e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("queries", "dims"), [(1, 8), (70, 128), (33, 40), (20, 256), (1100, 128)])
def test_rank_and_size_as_in_float64(device: str, dtype: torch.dtype, padded: bool, queries: int, dims: int) -> None:
    output, weight, real = made(0, dtype=dtype, device=device, queries=queries, dims=dims, padded=padded)
    check(rank_and_size(output, gram_of(weight), real), output, weight, real)
    check(rank_and_size(output, None, real), output, None, real)


@pytest.mark.parametrize("device", DEVICES)
def test_a_head_that_puts_out_nothing_has_no_rank(device: str) -> None:
    output, weight, _ = made(0, dtype=torch.bfloat16, device=device, queries=5, dims=16, padded=False)
    rank, size = rank_and_size(torch.zeros_like(output), gram_of(weight), None)
    assert rank.isnan().all() and (size == 0).all()


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_no_number_stays_none(device: str) -> None:
    output, weight, _ = made(0, dtype=torch.bfloat16, device=device, queries=5, dims=16, padded=False)
    output[1, 2, 3, 4] = torch.nan
    rank, size = rank_and_size(output, gram_of(weight), None)
    assert rank.isnan().nonzero().tolist() == size.isnan().nonzero().tolist() == [[1, 2]]


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 99),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    queries=st.integers(1, 40),
    dims=st.integers(1, 32),
    padded=st.booleans(),
)
def test_the_kernel_in_the_interpreter(seed: int, dtype: torch.dtype, queries: int, dims: int, padded: bool) -> None:
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("the GPU suite runs the compiled kernel")
    from sinklens.kernels import ranks_triton

    output, weight, real = made(seed, dtype=dtype, device="cpu", queries=queries, dims=dims, padded=padded)
    check(ranks_triton.rank_and_size(output, gram_of(weight), real), output, weight, real)
    check(ranks_triton.rank_and_size(output, None, real), output, None, real)
    nothing = ranks_triton.rank_and_size(torch.zeros_like(output), gram_of(weight), real)
    assert nothing[0].isnan().all() and (nothing[1] == 0).all()
    output[0, 1, -1] = torch.nan
    rank, size = ranks_triton.rank_and_size(output, gram_of(weight), real)
    assert rank.isnan().nonzero().tolist() == size.isnan().nonzero().tolist() == [[0, 1]]
