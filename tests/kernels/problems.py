"""Random attention problems for property tests, and the error that any implementation may make on them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from kernels import oracle

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


@dataclass(frozen=True)
class Problem:
    query: Tensor
    key: Tensor
    codes: Tensor
    groups: int
    options: dict[str, Any]  # mask, is_causal, scale, softcap, sink_logits

    def truth(self) -> oracle.Truth:
        def array(tensor: Tensor | None) -> Any:
            return None if tensor is None else tensor.detach().cpu().double().numpy()

        mask, o = self.options["mask"], self.options
        hidden = None
        if mask is not None:
            hidden = None if mask.dtype == torch.bool else -9999.0
            mask = mask.cpu().numpy() if mask.dtype == torch.bool else array(mask)
        return oracle.attention(
            array(self.query), array(self.key), scale=o["scale"], mask=mask, hidden=hidden, causal=o["is_causal"],
            softcap=o["softcap"], sinks=array(o["sink_logits"]),
        )  # fmt: skip

    def allowed(self, truth: oracle.Truth, counted: np.ndarray) -> np.ndarray:
        """The error of eager attention in the same dtype, plus what float32 rounding can add, per key.

        A dot product of d terms is off by at most d eps sum|q k|; the softmax of a row of K logits by twice that and
        K eps; a sum of Q rows by Q eps. All relative to what the key receives.
        """
        eps = float(np.finfo(np.float64 if self.query.dtype == torch.float64 else np.float32).eps)
        heads, (queries, dim), keys = self.query.shape[1], self.query.shape[2:], self.key.shape[2]
        wide = self.key.double().repeat_interleave(heads // self.key.shape[1], dim=1)
        scale = self.options["scale"] or dim**-0.5
        size = float((self.query.double().abs() @ wide.abs().transpose(-1, -2)).max()) * abs(scale)
        capped = 8 * (self.options["softcap"] or 0.0)
        rounding = truth.received(counted) * eps * (2 * dim * size + 2 * keys + queries + capped + 16)
        return np.abs(self.eager(counted) - truth.received(counted)).max() + rounding + eps

    def eager(self, counted: np.ndarray) -> np.ndarray:
        """Column sums of attention as a model's eager code computes it, in the dtype of the inputs."""
        o, query = self.options, self.query
        heads = query.shape[1]
        key = self.key.repeat_interleave(heads // self.key.shape[1], dim=1)
        logits = query @ key.transpose(-1, -2) * (o["scale"] or query.shape[-1] ** -0.5)
        if o["softcap"] is not None:
            logits = torch.tanh(logits / o["softcap"]) * o["softcap"]
        visible = torch.from_numpy(self.truth().visible).to(logits.device)
        if o["mask"] is not None and o["mask"].dtype != torch.bool:
            logits = logits + torch.where(visible, o["mask"], 0.0).to(logits.dtype)
        logits = logits.masked_fill(~visible, -torch.inf)
        if o["sink_logits"] is not None:
            null = o["sink_logits"].to(logits.dtype).view(1, heads, 1, 1).expand(*logits.shape[:3], 1)
            logits = torch.cat([logits, null], dim=-1)
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        weights = torch.softmax(logits, dim=-1, dtype=wide).to(query.dtype)[..., : key.shape[2]]
        weights = torch.where(visible.any(-1, keepdim=True), weights, 0.0).cpu().double().numpy()
        return np.einsum("bhqk,bq->bhk", weights, counted.astype(float))

    def to(self, device: str) -> "Problem":
        moved = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in self.options.items()}
        return Problem(self.query.to(device), self.key.to(device), self.codes.to(device), self.groups, moved)


KINDS = ("none", "causal", "bool", "per_head", "padding", "float", "float_hidden")


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    dtypes: tuple[str, ...],
    most: int = 40,
    dims: tuple[int, ...] = (3, 8, 16, 24),
    kinds: tuple[str, ...] = KINDS,
    softcaps: tuple[float | None, ...] = (None, 2.0),
    sinks: tuple[bool, ...] = (False, True),
    groups_drawn: tuple[int, ...] = tuple(range(1, 9)),
) -> Problem:
    """Everything is drawn, unless it is narrowed (a compiled kernel is compiled anew for each combination)."""
    batch, kv_heads, per_kv = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    queries, keys = draw(st.integers(1, most)), draw(st.integers(1, most))
    dim = draw(st.sampled_from(dims))
    dtype = DTYPES[draw(st.sampled_from(dtypes))]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    spread = draw(st.sampled_from([0.3, 1.0, 3.0]))
    heads = kv_heads * per_kv
    if draw(st.booleans()):  # as a model lays them out: [batch, position, head, dim], transposed
        query = (normal(batch, queries, heads, dim) * spread).to(dtype).transpose(1, 2)
        key = (normal(batch, keys, kv_heads, dim) * spread).to(dtype).transpose(1, 2)
    else:
        query = (normal(batch, heads, queries, dim) * spread).to(dtype)
        key = (normal(batch, kv_heads, keys, dim) * spread).to(dtype)
    kind = draw(st.sampled_from(kinds))
    mask: Tensor | None = None
    if kind in ("bool", "per_head"):
        mask = torch.rand(batch, heads if kind == "per_head" else 1, queries, keys, generator=generator) > 0.3
    elif kind == "padding":
        mask = torch.rand(batch, 1, 1, keys, generator=generator) > 0.3
    elif kind.startswith("float"):
        mask = normal(1, heads, queries, keys).to(dtype)
        if kind == "float_hidden":
            mask = mask.masked_fill(torch.rand(mask.shape, generator=generator) > 0.7, torch.finfo(dtype).min)
    groups = draw(st.sampled_from(groups_drawn))
    codes = torch.randint(-1, groups, (batch, queries), generator=generator, dtype=torch.int32)
    options = {
        "mask": mask,
        "is_causal": kind == "causal",
        "scale": draw(st.sampled_from([None, 0.25])),
        "softcap": draw(st.sampled_from(softcaps)),
        "sink_logits": normal(heads).to(dtype) if draw(st.sampled_from(sinks)) else None,
    }
    return Problem(query, key, codes, groups, options)
