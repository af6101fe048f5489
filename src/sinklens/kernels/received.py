"""Attention received per key, without the query x key matrix: one function, three implementations.

`impl="auto"` resolves once, by device and package: triton on CUDA where it is installed, chunked elsewhere. An explicit
choice is run or refused, never replaced.
"""

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.errors import KernelError, UsageError, choose
from sinklens.kernels import chunked, reference
from sinklens.kernels.mask import AnyMask
from sinklens.kernels.scores import Scores
from sinklens.kernels.sums import Sums
from sinklens.kernels.uniform import Uniform, uniform

IMPLS = ("auto", "reference", "chunked", "triton")
MOST_GROUPS = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Received:
    """Attention received by every key, beside what uniform attention under the same mask would give."""

    sums: Sums
    uniform: Uniform
    impl: str

    @property
    def total(self) -> Float[Tensor, "batch head key"]:
        return self.sums.by_group.sum(0)

    @property
    def expected(self) -> Float[Tensor, "batch heads_or_1 key"]:
        return self.uniform.by_group.sum(0)

    @property
    def viewers(self) -> Float[Tensor, "batch heads_or_1 key"]:
        return self.uniform.viewers_by_group.sum(0)

    @property
    def fair_share(self) -> Float[Tensor, "batch head key"]:
        """Received / expected; NaN for a key that no counted query may see."""
        return self.total / self.expected


def resolve_impl(impl: str, device: torch.device) -> str:
    """The implementation that will run: explicit names as they are, "auto" by device."""
    choose("impl", impl, IMPLS)
    if impl != "auto":
        return impl
    return "triton" if device.type == "cuda" and find_spec("triton") is not None else "chunked"


def attention_received(
    query: Float[Tensor, "batch head query dim"],
    key: Float[Tensor, "batch kv_head key dim"],
    *,
    codes: Int[Tensor, "batch query"] | None = None,
    groups: int = 1,
    mask: AnyMask | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: Float[Tensor, " head"] | None = None,
    entropy: bool = False,
    lse: Float[Tensor, "batch head query"] | None = None,
    expected: Uniform | None = None,
    impl: str = "auto",
) -> Received:
    """Sums of softmax attention over queries, for every key.

    >>> q = k = torch.zeros(1, 1, 4, 2)          # equal logits: uniform attention
    >>> attention_received(q, k).total
    tensor([[[1., 1., 1., 1.]]])
    >>> attention_received(q, k, is_causal=True).fair_share
    tensor([[[1., 1., 1., 1.]]])

    codes: the group of each query (0 .. groups - 1), -1 for a query that is not counted (padding).
    lse: log-sum-exp of every row, if the forward pass gave it; only the triton kernel has a use for it.
    expected: uniform attention under the same mask, if it is known already (layers share masks).
    """
    scores = Scores(
        query=query,
        key=key,
        mask=mask,
        is_causal=is_causal,
        scale=scale,
        softcap=softcap,
        sink_logits=sink_logits,
    )
    return received_of(scores, codes=codes, groups=groups, entropy=entropy, lse=lse, expected=expected, impl=impl)


def received_of(
    scores: Scores,
    *,
    codes: Int[Tensor, "batch query"] | None = None,
    groups: int = 1,
    entropy: bool = False,
    lse: Float[Tensor, "batch head query"] | None = None,
    expected: Uniform | None = None,
    impl: str = "auto",
) -> Received:
    """`attention_received`, of logits that are at hand as one value."""
    if not 1 <= groups <= MOST_GROUPS + 1:
        raise UsageError(f"{groups} query groups; 1 to {MOST_GROUPS} and a rest are accepted")
    batch, heads, queries, keys = scores.shape
    if codes is None:
        codes = torch.zeros(batch, queries, dtype=torch.int32, device=scores.query.device)
    if expected is None:
        expected = uniform(codes, groups=groups, heads=heads, keys=keys, mask=scores.mask, is_causal=scores.is_causal)
    name = resolve_impl(impl, scores.query.device)
    with torch.autocast(scores.query.device.type, enabled=False):  # sums are float32, or finer
        sums = _sums(name, scores, codes=codes, groups=groups, entropy=entropy, lse=lse)
    return Received(sums=sums, uniform=expected, impl=name)


def _sums(
    name: str,
    scores: Scores,
    *,
    codes: Int[Tensor, "batch query"],
    groups: int,
    entropy: bool,
    lse: Float[Tensor, "batch head query"] | None,
) -> Sums:
    if name == "triton":
        if find_spec("triton") is None:
            raise KernelError("impl='triton' needs the triton package; install it, or use impl='chunked' (any device)")
        from sinklens.kernels import triton as second_pass

        return second_pass.received(scores, codes=codes, groups=groups, entropy=entropy, lse=lse)
    received = chunked.received if name == "chunked" else reference.received
    return received(scores, codes=codes, groups=groups, entropy=entropy)
