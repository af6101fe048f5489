"""Norms of keys, values, and values behind the output projection, against float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sinklens.kernels.norms import Gram, Norms, norms

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def made(
    seed: int, *, dtype: torch.dtype, device: str, keys: int, dims: tuple[int, int], per_kv: int
) -> tuple[Tensor, Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    key, value = (
        torch.randn(2, keys, 3, dim, generator=draws).transpose(1, 2) for dim in dims
    )  # strided, as in models
    weight = torch.randn(3 * per_kv, 40, dims[1], generator=draws)
    return key.to(device, dtype), value.to(device, dtype), (weight.transpose(1, 2) @ weight).to(device)


def check(found: Norms, key: Tensor, value: Tensor, gram: Tensor | None) -> None:
    torch.testing.assert_close(found.key.double(), key.double().norm(dim=-1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.value.double(), value.double().norm(dim=-1), rtol=1e-5, atol=1e-6)
    if gram is None:
        assert found.output is None
        return
    per_kv = len(gram) // value.shape[1]
    wide = value.double().repeat_interleave(per_kv, dim=1)
    assert found.output is not None
    expected = torch.einsum("bhkd,hde,bhke->bhk", wide, gram.double(), wide).clamp(min=0).sqrt()
    torch.testing.assert_close(found.output.double(), expected, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("keys", "dims", "per_kv"),
    [(1, (8, 8), 1), (70, (128, 128), 2), (33, (24, 40), 7), (20, (256, 256), 1), (1100, (128, 128), 1)],
)
def test_norms_as_in_float64(device: str, dtype: torch.dtype, keys: int, dims: tuple[int, int], per_kv: int) -> None:
    key, value, gram = made(0, dtype=dtype, device=device, keys=keys, dims=dims, per_kv=per_kv)
    check(norms(key, value, Gram(whole=gram)), key, value, gram)
    check(norms(key, value, None), key, value, None)


def test_three_parts_hold_a_float32() -> None:
    gram = Gram(
        whole=torch.randn(2, 5, 5, generator=torch.Generator().manual_seed(0))
        * torch.tensor([1e-3, 1e4])[:, None, None]
    )
    assert torch.equal(gram.parts.double().sum(0).float(), gram.whole)


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 99),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    keys=st.integers(1, 40),
    dims=st.tuples(st.integers(1, 32), st.integers(1, 32)),
    per_kv=st.integers(1, 3),
)
def test_the_kernel_in_the_interpreter(
    seed: int, dtype: torch.dtype, keys: int, dims: tuple[int, int], per_kv: int
) -> None:
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("the GPU suite runs the compiled kernel")
    from sinklens.kernels import norms_triton

    key, value, gram = made(seed, dtype=dtype, device="cpu", keys=keys, dims=dims, per_kv=per_kv)
    for known in (gram, None):
        check(norms_triton.norms(key, value, None if known is None else Gram(whole=known)), key, value, known)
