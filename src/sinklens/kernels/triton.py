"""Attention received as a second pass on the GPU: exp(q k^T * scale - lse), summed over queries, tile by tile.

The log-sum-exp of every row comes from the fused forward where it gives one, else from a pass of our own. Each program
owns one block of keys of one head and walks over the queries, so there are no atomics and the sums do not depend on the
order of execution. Shapes follow the suffix legend: b batch, h head, q query, k key, d dim, g group.

Under Triton's interpreter (TRITON_INTERPRET=1, no GPU) operands are upcast: its bf16 dot product is wrong.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.errors import KernelError
from sinklens.kernels.mask import HIDDEN
from sinklens.kernels.scores import Scores
from sinklens.kernels.sums import Sums

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
NO_MASK, BOOL_MASK, FLOAT_MASK = 0, 1, 2
SHORT, LONG = 512, 2048  # keys up to which small tiles of the second pass win, and from which large: tiles_gpu.py
# Lengths change from call to call; specialising on them would compile the kernels over and over. Strides of queries and
# keys stay: where all are known to be multiples of 16, rows are read in one piece, and ahead of their use.
_UNSPECIALIZED = ["n_h", "per_kv", "n_q", "n_k", "n_d", "stride_mb", "stride_mh", "stride_mq", "stride_og"]


@triton.jit
@no_type_check  # compiled from its source: a wrapper that checks shapes would hide it
def _tanh(x):
    """tanh without cancellation near 0."""
    e = tl.exp(-2.0 * tl.abs(x))
    far = tl.where(x >= 0, 1.0, -1.0) * (1.0 - e) / (1.0 + e)
    square = x * x
    near = x * (1.0 - square * (1.0 / 3.0 - square * (2.0 / 15.0 - square * (17.0 / 315.0))))
    return tl.where(tl.abs(x) < 0.1, near, far)


@triton.jit
@no_type_check  # compiled from its source: a wrapper that checks shapes would hide it
def _logits(
    q_qd, k_dk, mask_ptr, rows_q, cols_k, n_q, n_k, stride_mq, stride_mk, scale, softcap, hidden,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, SOFTCAP: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Masked logits of one tile; minus infinity where the key may not be seen."""
    if UPCAST:
        q_qd = q_qd.to(tl.float32)
        k_dk = k_dk.to(tl.float32)
    s_qk = tl.dot(q_qd, k_dk, input_precision="ieee") * scale
    if SOFTCAP:
        s_qk = softcap * _tanh(s_qk / softcap)
    inside = (rows_q[:, None] < n_q) & (cols_k[None, :] < n_k)
    if MASK != 0:
        offsets = rows_q[:, None].to(tl.int64) * stride_mq + cols_k[None, :].to(tl.int64) * stride_mk
        m_qk = tl.load(mask_ptr + offsets, mask=inside, other=0)
        if MASK == 1:
            inside = inside & (m_qk != 0)
        else:
            m_qk = m_qk.to(tl.float32)
            inside = inside & (m_qk > hidden)
            s_qk = s_qk + m_qk
    if CAUSAL:
        inside = inside & (rows_q[:, None] >= cols_k[None, :])
    return tl.where(inside, s_qk, float("-inf"))


@triton.jit(do_not_specialize=_UNSPECIALIZED)
@no_type_check
def _row_kernel(
    q_ptr, k_ptr, mask_ptr, sink_ptr, lse_ptr, entropy_ptr,
    stride_qb, stride_qh, stride_qq, stride_qd, stride_kb, stride_kh, stride_kk, stride_kd,
    stride_mb, stride_mh, stride_mq, stride_mk,
    n_h, per_kv, n_q, n_k, n_d, scale, softcap, hidden,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, SOFTCAP: tl.constexpr, SINK: tl.constexpr,
    ENTROPY: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """lse (natural logarithm) and entropy of BLOCK_Q rows; a row that sees nothing gets lse = +inf."""
    rows_q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    b = (tl.program_id(1) // n_h).to(tl.int64)
    h = (tl.program_id(1) % n_h).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    q_qd = tl.load(
        q_ptr + b * stride_qb + h * stride_qh
        + rows_q[:, None].to(tl.int64) * stride_qq + dims[None, :] * stride_qd,
        mask=(rows_q[:, None] < n_q) & (dims[None, :] < n_d), other=0.0,
    )  # fmt: skip
    k_base = k_ptr + b * stride_kb + (h // per_kv) * stride_kh
    mask_base = mask_ptr + b * stride_mb + h * stride_mh
    peak = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    weighted = tl.zeros([BLOCK_Q], tl.float32)  # sum of exp(s - peak) * s
    for start in range(0, n_k, BLOCK_K):
        cols_k = start + tl.arange(0, BLOCK_K)
        k_dk = tl.load(
            k_base + cols_k[None, :].to(tl.int64) * stride_kk + dims[:, None] * stride_kd,
            mask=(cols_k[None, :] < n_k) & (dims[:, None] < n_d), other=0.0,
        )  # fmt: skip
        s_qk = _logits(
            q_qd, k_dk, mask_base, rows_q, cols_k, n_q, n_k, stride_mq, stride_mk, scale, softcap, hidden,
            MASK, CAUSAL, SOFTCAP, UPCAST,
        )  # fmt: skip
        higher = tl.maximum(peak, tl.max(s_qk, 1))
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        e_qk = tl.exp(s_qk - safe[:, None])
        shrink = tl.exp(peak - safe)
        total = total * shrink + tl.sum(e_qk, 1)
        if ENTROPY:
            weighted = weighted * shrink + tl.sum(e_qk * tl.where(e_qk > 0, s_qk, 0.0), 1)
        peak = higher
    sees_none = peak == float("-inf")
    safe = tl.where(sees_none, 0.0, peak)
    if SINK:
        sink = tl.load(sink_ptr + h).to(tl.float32)
        higher = tl.maximum(safe, sink)
        null = tl.exp(sink - higher)
        shrink = tl.exp(safe - higher)
        total = total * shrink + null
        weighted = weighted * shrink + null * sink
        safe = higher
    total = tl.where(sees_none, 1.0, total)
    lse = safe + tl.log(total)
    at = tl.program_id(1).to(tl.int64) * n_q + rows_q
    tl.store(lse_ptr + at, tl.where(sees_none, float("inf"), lse), mask=rows_q < n_q)
    if ENTROPY:
        tl.store(entropy_ptr + at, tl.where(sees_none, 0.0, lse - weighted / total), mask=rows_q < n_q)


@triton.jit(do_not_specialize=_UNSPECIALIZED)
@no_type_check
def _column_kernel(
    q_ptr, k_ptr, mask_ptr, lse_ptr, code_ptr, out_ptr,
    stride_qb, stride_qh, stride_qq, stride_qd, stride_kb, stride_kh, stride_kk, stride_kd,
    stride_mb, stride_mh, stride_mq, stride_mk, stride_og,
    n_h, per_kv, n_q, n_k, n_d, scale, softcap, hidden,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, SOFTCAP: tl.constexpr, WHOLE_D: tl.constexpr,
    GROUPS: tl.constexpr, GROUPS_PADDED: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Sums over all queries, per group, of the attention that BLOCK_K keys of one head receive.

    Keys are the rows of a tile: a sum over queries then stays inside a thread. Queries that are not counted, or beyond
    the last, have lse = +inf, so that their share is 0 without a comparison for every element.
    """
    cols_k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    b = (tl.program_id(1) // n_h).to(tl.int64)
    h = (tl.program_id(1) % n_h).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    inside_kd = cols_k[:, None] < n_k
    if not WHOLE_D:
        inside_kd = inside_kd & (dims[None, :] < n_d)
    k_kd = tl.load(
        k_ptr + b * stride_kb + (h // per_kv) * stride_kh
        + cols_k[:, None].to(tl.int64) * stride_kk + dims[None, :] * stride_kd,
        mask=inside_kd, other=0.0,
    )  # fmt: skip
    if UPCAST:
        k_kd = k_kd.to(tl.float32)
    q_base = q_ptr + b * stride_qb + h * stride_qh
    mask_base = mask_ptr + b * stride_mb + h * stride_mh
    lse_base = lse_ptr + tl.program_id(1).to(tl.int64) * n_q
    group_ids = tl.arange(0, GROUPS_PADDED)
    sums_gk = tl.zeros([GROUPS_PADDED, BLOCK_K], tl.float32)
    first = 0
    if CAUSAL:  # earlier queries see none of these keys
        first = (tl.program_id(0) * BLOCK_K // BLOCK_Q) * BLOCK_Q
    for start in range(first, n_q, BLOCK_Q):
        rows_q = start + tl.arange(0, BLOCK_Q)
        inside_dq = rows_q[None, :] < n_q
        if not WHOLE_D:
            inside_dq = inside_dq & (dims[:, None] < n_d)
        q_dq = tl.load(
            q_base + rows_q[None, :].to(tl.int64) * stride_qq + dims[:, None] * stride_qd,
            mask=inside_dq, other=0.0,
        )  # fmt: skip
        if UPCAST:
            q_dq = q_dq.to(tl.float32)
        code = tl.load(code_ptr + b * n_q + rows_q, mask=rows_q < n_q, other=-1)
        lse = tl.load(lse_base + rows_q, mask=rows_q < n_q, other=float("inf"))
        lse = tl.where(code >= 0, lse, float("inf")) * LOG2_E
        s_kq = tl.dot(k_kd, q_dq, input_precision="ieee")
        if SOFTCAP:
            s_kq = softcap / scale * _tanh(s_kq * scale / softcap)
        s_kq *= scale * LOG2_E
        if MASK != 0:
            inside = (rows_q[None, :] < n_q) & (cols_k[:, None] < n_k)
            offsets = rows_q[None, :].to(tl.int64) * stride_mq + cols_k[:, None].to(tl.int64) * stride_mk
            m_kq = tl.load(mask_base + offsets, mask=inside, other=0)
            if MASK == 1:
                s_kq = tl.where(m_kq != 0, s_kq, float("-inf"))
            else:
                m_kq = m_kq.to(tl.float32)
                s_kq += tl.where(m_kq > hidden, m_kq, float("-inf")) * LOG2_E
        if CAUSAL:
            s_kq = tl.where(rows_q[None, :] >= cols_k[:, None], s_kq, float("-inf"))
        p_kq = tl.exp2(s_kq - lse[None, :])
        if GROUPS == 1:
            sums_gk += tl.sum(p_kq, 1)[None, :]
        else:
            for group in tl.static_range(GROUPS):
                part = tl.sum(p_kq * (code == group).to(tl.float32)[None, :], 1)
                sums_gk += tl.where((group_ids == group)[:, None], part[None, :], 0.0)
    out = out_ptr + group_ids[:, None].to(tl.int64) * stride_og + tl.program_id(1).to(tl.int64) * n_k + cols_k[None, :]
    tl.store(out, sums_gk, mask=(group_ids[:, None] < GROUPS) & (cols_k[None, :] < n_k))


def interpreted() -> bool:
    """True when Triton's interpreter runs the kernels on the CPU."""
    return not isinstance(_row_kernel, triton.runtime.JITFunction)


def received(
    scores: Scores,
    *,
    codes: Int[Tensor, "batch query"],
    groups: int,
    entropy: bool = False,
    lse: Float[Tensor, "batch head query"] | None = None,
) -> Sums:
    """Column sums per query group; see reference.received. `lse` spares the pass over the rows."""
    query, key, sinks = scores.query, scores.key, scores.sink_logits
    _check(query)
    batch, heads, n_q, n_k = scores.shape
    mask_kind, mask, mask_strides, hidden = _mask_arguments(scores.mask, scores.shape)
    softcap = scores.softcap or 1.0
    sizes = (heads, scores.per_kv, n_q, n_k, query.shape[-1], scores.softmax_scale, softcap, hidden)
    switches = {"MASK": mask_kind, "CAUSAL": scores.is_causal, "SOFTCAP": scores.softcap is not None}
    blocks = _blocks(query, masked=mask is not None)
    holder = query if mask is None else mask  # a pointer that is never read
    rows = None
    if lse is None or entropy or sinks is not None:
        lse = query.new_empty((batch, heads, n_q), dtype=torch.float32)
        rows = torch.empty_like(lse) if entropy else lse
        _row_kernel[(triton.cdiv(n_q, blocks["BLOCK_Q"]), batch * heads)](
            query, key, holder, lse if sinks is None else sinks, lse, rows,
            *query.stride(), *key.stride(), *mask_strides, *sizes,
            SINK=sinks is not None, ENTROPY=entropy, **switches, **blocks,
        )  # fmt: skip
    lse = lse.float().contiguous()
    totals = query.new_empty((groups, batch, heads, n_k), dtype=torch.float32)
    blocks = _column_blocks(blocks, n_k)
    _column_kernel[(triton.cdiv(n_k, blocks["BLOCK_K"]), batch * heads)](
        query, key, holder, lse, codes.to(torch.int32).contiguous(), totals,
        *query.stride(), *key.stride(), *mask_strides, totals.stride(0), *sizes,
        GROUPS=groups, GROUPS_PADDED=triton.next_power_of_2(groups), WHOLE_D=query.shape[-1] == blocks["BLOCK_D"],
        **switches, **blocks,
    )  # fmt: skip
    null_mass = None
    if sinks is not None:
        null = torch.exp(sinks.float().view(1, heads, 1) - lse)
        null_mass = (null * (codes >= 0)[:, None]).sum(-1)
    return Sums(by_group=totals, null_mass=null_mass, entropy=rows if entropy else None)


def _check(query: Tensor) -> None:
    if query.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise KernelError(
            f"the triton kernel takes float32, bfloat16 and float16, not {query.dtype}; "
            "use impl='chunked' or impl='reference'"
        )
    if query.shape[-1] > 256:
        raise KernelError(f"the triton kernel takes heads of up to 256 dims, not {query.shape[-1]}; use impl='chunked'")
    if not query.is_cuda and not interpreted():
        raise KernelError(
            f"the triton kernel runs on CUDA, not on {query.device.type}; use impl='chunked', "
            "or set TRITON_INTERPRET=1 before importing triton to run it slowly on the CPU"
        )


def _mask_arguments(
    mask: Tensor | None, shape: tuple[int, int, int, int]
) -> tuple[int, Tensor | None, tuple[int, ...], float]:
    """Kind, tensor, strides (0 along broadcast axes) and the value at or below which a key is hidden."""
    if mask is None:
        return NO_MASK, None, (0, 0, 0, 0), 0.0
    wide = mask.expand(shape)
    if mask.dtype == torch.bool:
        return BOOL_MASK, wide.view(torch.uint8), wide.stride(), 0.0
    return FLOAT_MASK, wide, wide.stride(), HIDDEN


def _blocks(query: Tensor, *, masked: bool) -> dict[str, int]:
    """Tile sizes and warps. Small tiles under the interpreter, so that small tests meet every edge.

    A mask is read element by element: large tiles of it take many registers, and long to compile.
    """
    depth = max(16, triton.next_power_of_2(query.shape[-1]))
    if interpreted():
        return {"BLOCK_Q": 16, "BLOCK_K": 32, "BLOCK_D": depth, "UPCAST": True}
    side = 128 if query.dtype != torch.float32 and depth <= 128 and not masked else 64
    return {
        "BLOCK_Q": side,
        "BLOCK_K": side,
        "BLOCK_D": depth,
        "UPCAST": False,
        "num_warps": 4,
        "num_stages": 2,
    }


def _column_blocks(blocks: dict[str, int], keys: int) -> dict[str, int]:
    """Of the second pass: long sequences fill the card with tiles of many keys, short ones only with few."""
    if SHORT < keys < LONG or blocks["BLOCK_K"] < 128:  # small for a reason: a mask, float32, an odd head
        return blocks
    if keys <= SHORT:
        return {**blocks, "BLOCK_K": 64, "num_stages": 3}
    return {**blocks, "BLOCK_Q": 64, "BLOCK_K": 256, "num_stages": 3}
