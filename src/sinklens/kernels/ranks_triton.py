"""Rank and size of what heads put out, in one launch. Each program owns one head of one row of the batch."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float
from torch import Tensor

from sinklens.kernels.norms import Gram
from sinklens.kernels.ranks import RankAndSize
from sinklens.kernels.triton import interpreted


@triton.jit(do_not_specialize=["n_h", "n_q"])
@no_type_check  # compiled from its source: a wrapper that checks shapes would hide it
def _rank_kernel(
    o_ptr, gram_ptr, real_ptr, rank_ptr, size_ptr,
    stride_ob, stride_oh, stride_oq, stride_od, stride_rb, stride_rq, n_h, n_q, stride_part,
    N_V: tl.constexpr, GRAM: tl.constexpr, REAL: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    b = (tl.program_id(0) // n_h).to(tl.int64)
    h = (tl.program_id(0) % n_h).to(tl.int64)
    dims = tl.arange(0, BLOCK_V)
    product = tl.zeros([BLOCK_V, BLOCK_V], dtype=tl.float32)
    queries = tl.zeros([BLOCK_Q], dtype=tl.float32)
    for start in range(0, n_q, BLOCK_Q):
        rows = start + tl.arange(0, BLOCK_Q)
        counted = rows < n_q
        if REAL:
            real = tl.load(real_ptr + b * stride_rb + rows.to(tl.int64) * stride_rq, mask=counted, other=0)
            counted = counted & (real != 0)
        o_qv = tl.load(
            o_ptr + b * stride_ob + h * stride_oh + rows[:, None].to(tl.int64) * stride_oq + dims[None, :] * stride_od,
            mask=counted[:, None] & (dims[None, :] < N_V), other=0.0,
        )  # fmt: skip
        queries += counted.to(tl.float32)
        if WIDE:
            o_qv = o_qv.to(tl.float32)
        product = tl.dot(tl.trans(o_qv), o_qv, product, input_precision=PRECISION)
    if GRAM:  # both are sums of three bf16 matrices, which hold a float32; products of the small ones do not count
        square = (dims[:, None] < N_V) & (dims[None, :] < N_V)
        offsets = h * N_V * N_V + dims[:, None] * N_V + dims[None, :]
        behind = tl.zeros([BLOCK_V, BLOCK_V], dtype=tl.float32)
        for i in tl.static_range(3):
            part = product.to(tl.bfloat16)
            product -= part.to(tl.float32)
            for j in tl.static_range(3 - i):
                gram = tl.load(gram_ptr + j * stride_part + offsets, mask=square, other=0.0)
                if WIDE:
                    behind = tl.dot(part.to(tl.float32), gram.to(tl.float32), behind, input_precision=PRECISION)
                else:
                    behind = tl.dot(part, gram, behind)
        product = behind
    total = tl.sum(tl.sum(tl.where(dims[:, None] == dims[None, :], product, 0.0), 1), 0)
    total = tl.where(total < 0, 0.0, total)  # NaN stays
    fourth = tl.sum(tl.sum(product * tl.trans(product), 1), 0)
    rank = total * total / tl.where(fourth > 0, fourth, float("nan"))
    tl.store(rank_ptr + tl.program_id(0), rank)
    tl.store(size_ptr + tl.program_id(0), tl.sqrt(total / tl.sum(queries, 0)))


def rank_and_size(
    output: Float[Tensor, "batch head query value_dim"], gram: Gram | None, real: Bool[Tensor, "batch query"] | None
) -> RankAndSize:
    """See `kernels.ranks.rank_and_size`."""
    batch, heads, queries, dims = output.shape
    rank, size = (output.new_empty((batch, heads), dtype=torch.float32) for _ in range(2))
    _rank_kernel[(batch * heads,)](
        output, rank if gram is None else gram.parts, rank if real is None else real.view(torch.uint8),
        rank, size, *output.stride(), *((0, 0) if real is None else real.stride()), heads, queries,
        0 if gram is None else gram.parts.stride(0),
        N_V=dims,
        GRAM=gram is not None,
        REAL=real is not None,
        WIDE=interpreted(),  # whose products of bf16 are wrong
        PRECISION="ieee",  # of float32; products of half precision are exact
        BLOCK_Q=16 if interpreted() else 64,
        BLOCK_V=max(16, triton.next_power_of_2(dims)),
        num_warps=8,
    )  # fmt: skip
    return rank, size
