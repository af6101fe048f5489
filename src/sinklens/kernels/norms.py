"""Norms of keys and values, and of values behind the output projection, in float32.

    key_norm    || k_j ||
    value_norm  || v_j ||
    output_norm || W_h v_j || = sqrt(v_j^T M_h v_j)   M_h = W_h^T W_h, the Gram matrix of head h's slice

On a GPU one Triton kernel reads every key and value once and writes all three; elsewhere they are plain torch.
"""

from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec

import torch
from jaxtyping import BFloat16, Float
from torch import Tensor

MOST_DIMS = 128  # of the kernel: a Gram matrix is held whole


@dataclass(frozen=True, kw_only=True, eq=False)
class Gram:
    """The Gram matrices of all heads' slices of an output projection."""

    whole: Float[Tensor, "head value_dim value_dim"]  # float32

    @cached_property
    def parts(self) -> BFloat16[Tensor, "3 head value_dim value_dim"]:
        """The same as a sum of three bf16 matrices, which holds a float32's digits: for products with bf16 values."""
        rest, parts = self.whole, []
        for _ in range(3):
            parts.append(rest.to(torch.bfloat16))
            rest = rest - parts[-1].float()
        return torch.stack(parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class Norms:
    """Of one attention call."""

    key: Float[Tensor, "batch kv_head key"]
    value: Float[Tensor, "batch kv_head key"]
    output: Float[Tensor, "batch head key"] | None  # None: the projection is not known


def norms(
    key: Float[Tensor, "batch kv_head key dim"],
    value: Float[Tensor, "batch kv_head key value_dim"],
    gram: Gram | None,
) -> Norms:
    """Summed in float32, or finer: in bf16 most norms would tie."""
    small = max(key.shape[-1], value.shape[-1]) <= MOST_DIMS and key.dtype == value.dtype != torch.float64
    if key.is_cuda and small and find_spec("triton") is not None:
        from sinklens.kernels.norms_triton import norms as fused

        return fused(key, value, gram)
    return Norms(key=_norm(key), value=_norm(value), output=None if gram is None else _behind(value, gram.whole))


def _norm(vectors: Float[Tensor, "batch kv_head key dim"]) -> Float[Tensor, "batch kv_head key"]:
    found: Tensor = torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.promote_types(vectors.dtype, torch.float32))
    return found


def _behind(
    value: Float[Tensor, "batch kv_head key dim"], gram: Float[Tensor, "head dim dim"]
) -> Float[Tensor, "batch head key"]:
    dim = value.shape[-1]
    shared = gram.view(value.shape[1], -1, dim, dim)  # by kv head, then the heads that share it
    wide = value.float().unsqueeze(2)
    squares = ((wide @ shared) * wide).sum(-1)
    return squares.clamp(min=0).sqrt().flatten(1, 2)
