"""The norms of one call in one launch. Each program owns a block of keys of one head."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from sinklens.kernels.norms import Gram, Norms
from sinklens.kernels.triton import interpreted

LONG = 1024  # keys

_UNSPECIALIZED = ["n_h", "per_kv", "n_k"]


@triton.jit(do_not_specialize=_UNSPECIALIZED)
@no_type_check  # compiled from its source: a wrapper that checks shapes would hide it
def _norm_kernel(
    k_ptr, v_ptr, gram_ptr, key_ptr, value_ptr, output_ptr,
    stride_kb, stride_kh, stride_kk, stride_kd, stride_vb, stride_vh, stride_vk, stride_vd,
    n_h, per_kv, n_k, stride_part,
    N_D: tl.constexpr, N_V: tl.constexpr,
    PARTS: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Heads that share a kv head: the first of them writes its norms. Widths are known when it is compiled: only then
    are rows of a matrix read in one piece."""
    cols_k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    b = (tl.program_id(1) // n_h).to(tl.int64)
    h = tl.program_id(1) % n_h
    kv = h // per_kv
    places = cols_k[:, None].to(tl.int64)
    there = cols_k < n_k
    dims_v = tl.arange(0, BLOCK_V)
    v_raw = tl.load(
        v_ptr + b * stride_vb + kv.to(tl.int64) * stride_vh + places * stride_vk + dims_v[None, :] * stride_vd,
        mask=there[:, None] & (dims_v[None, :] < N_V), other=0.0,
    )  # fmt: skip
    v_kd = v_raw.to(tl.float32)
    if PARTS > 0:
        square = (dims_v[:, None] < N_V) & (dims_v[None, :] < N_V)
        offsets = h.to(tl.int64) * N_V * N_V + dims_v[:, None] * N_V + dims_v[None, :]
        products = tl.zeros([BLOCK_K, BLOCK_V], dtype=tl.float32)
        for part in tl.static_range(PARTS):
            gram = tl.load(gram_ptr + part * stride_part + offsets, mask=square, other=0.0)
            if PARTS == 1 or WIDE:
                products = tl.dot(v_kd, gram.to(tl.float32), products, input_precision=PRECISION)
            else:
                products = tl.dot(v_raw, gram, products)
        squares = tl.sum(products * v_kd, 1)
        out = output_ptr + tl.program_id(1).to(tl.int64) * n_k + cols_k
        tl.store(out, tl.sqrt(tl.where(squares < 0, 0.0, squares)), mask=there)  # NaN stays
    if h % per_kv == 0:
        at = (b * (n_h // per_kv) + kv) * n_k + cols_k
        tl.store(value_ptr + at, tl.sqrt(tl.sum(v_kd * v_kd, 1)), mask=there)
        dims_k = tl.arange(0, BLOCK_D)
        k_kd = tl.load(
            k_ptr + b * stride_kb + kv.to(tl.int64) * stride_kh + places * stride_kk + dims_k[None, :] * stride_kd,
            mask=there[:, None] & (dims_k[None, :] < N_D), other=0.0,
        ).to(tl.float32)  # fmt: skip
        tl.store(key_ptr + at, tl.sqrt(tl.sum(k_kd * k_kd, 1)), mask=there)


def norms(
    key: Float[Tensor, "batch kv_head key dim"],
    value: Float[Tensor, "batch kv_head key value_dim"],
    gram: Gram | None,
) -> Norms:
    """See `kernels.norms.norms`."""
    batch, kv_heads, n_k, n_d = key.shape
    heads = kv_heads if gram is None else gram.whole.shape[0]
    of_key, of_value = (key.new_empty((batch, kv_heads, n_k), dtype=torch.float32) for _ in range(2))
    output = None if gram is None else key.new_empty((batch, heads, n_k), dtype=torch.float32)
    # A Gram matrix is read once a block; float32 takes too much room.
    wide = n_k >= LONG and value.dtype != torch.float32
    block = 16 if interpreted() else 128 if wide else 64
    # bf16 takes three products with bf16 matrices: those run on tensor cores as they are, and hold all digits.
    split = value.dtype == torch.bfloat16
    matrix, behind, parts = of_key, of_key, 0
    if gram is not None and output is not None:
        matrix, behind, parts = (gram.parts if split else gram.whole.contiguous()), output, 3 if split else 1
    _norm_kernel[(triton.cdiv(n_k, block), batch * heads)](
        key, value, matrix, of_key, of_value, behind,
        *key.stride(), *value.stride(), heads, heads // kv_heads, n_k, matrix.stride(0) if parts > 1 else 0,
        N_D=n_d,
        N_V=value.shape[-1],
        PARTS=parts,
        WIDE=interpreted(),  # whose products of bf16 are wrong
        # A float16 value is exact in tf32, and three products hold the float32 matrix.
        PRECISION="ieee" if value.dtype == torch.float32 else "tf32x3",
        BLOCK_K=block,
        BLOCK_D=max(16, triton.next_power_of_2(n_d)),
        BLOCK_V=max(16, triton.next_power_of_2(value.shape[-1])),
        num_warps=4 if block < 128 else 8,
    )  # fmt: skip
    return Norms(key=of_key, value=of_value, output=output)
