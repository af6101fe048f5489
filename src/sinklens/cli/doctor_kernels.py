"""Attention kernels, each run on small calls and held against the definition in float64.

The calls have grouped heads, causal and other masks, soft-capped logits and learned sinks.
"""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from sinklens.cli.doctor_checks import ABSENT, OK, WRONG, Finding, told
from sinklens.errors import KernelError
from sinklens.kernels.forward import run_attention
from sinklens.kernels.norms import Gram, norms
from sinklens.kernels.received import received_of, resolve_impl
from sinklens.kernels.reference import probabilities
from sinklens.kernels.scores import Scores

BATCH, HEADS, KV_HEADS, LENGTH, DIM = 2, 4, 2, 40, 32
SUMS = 64 * LENGTH * torch.finfo(torch.float32).eps  # allowed: sums of weights are float32 whatever the inputs are
# Allowed of what attention puts out, which is torch's own: it may round to tf32, and bfloat16 rounds the weights too.
OUTPUT = {torch.float32: 2e-3, torch.bfloat16: 6e-2}
DTYPES = {"cpu": (torch.float32,), "cuda": (torch.float32, torch.bfloat16)}


def kernels() -> Iterator[Finding]:
    """Every implementation, on the CPU and on the first GPU."""
    for device in ("cpu", "cuda")[: 1 + torch.cuda.is_available()]:
        for impl in ("chunked", "triton"):
            yield _tried(f"{impl} on {device}", _received, impl, device)
        yield _tried(f"norms on {device}", _norms, "", device)
        yield _tried(f"attention on {device}", _attention, "", device)


def _tried(name: str, check: Any, impl: str, device: str) -> Finding:
    """The worst error over the calls, or why it does not run."""
    if impl == "triton" and find_spec("triton") is None:
        state = ABSENT if device == "cpu" else WRONG
        do = None if device == "cpu" else "pip install triton"
        return Finding(part="kernels", name=name, state=state, says="triton is not installed", do=do)
    try:
        errors = {str(dtype).removeprefix("torch."): check(impl, device, dtype) for dtype in DTYPES[device]}
    except KernelError as error:
        return Finding(part="kernels", name=name, state=ABSENT, says=str(error).split(";")[0])
    except Exception as error:
        chosen = impl == resolve_impl("auto", torch.device(device))
        do = "use impl='chunked' until it does" if impl == "triton" and chosen else None
        says = f"does not run: {told(error)}"
        return Finding(part="kernels", name=name, state=WRONG, says=says, do=do)
    says = "; ".join(f"{dtype}: error {found:.0e}, allowed {limit:.0e}" for dtype, (found, limit) in errors.items())
    right = all(found <= limit for found, limit in errors.values())  # false for NaN too
    do = None if right else "do not trust its numbers; try another version of torch or triton"
    return Finding(part="kernels", name=name, state=OK if right else WRONG, says=says, do=do)


def _calls(device: str, dtype: torch.dtype, *, plain: bool = False) -> Iterator[Scores]:
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(BATCH, HEADS, LENGTH, DIM, generator=draw).to(device, dtype)
    key = torch.randn(BATCH, KV_HEADS, LENGTH, DIM, generator=draw).to(device, dtype)
    seen = (torch.rand(BATCH, 1, LENGTH, LENGTH, generator=draw) < 0.7).to(device)
    yield Scores(query=query, key=key)
    yield Scores(query=query, key=key, is_causal=True)
    if not plain:
        logits = torch.linspace(-1, 1, HEADS).to(device)
        yield Scores(query=query, key=key, mask=seen, softcap=5.0, sink_logits=logits)


def _received(impl: str, device: str, dtype: torch.dtype) -> tuple[float, float]:
    pairs = [
        (received_of(scores, impl=impl).total, probabilities(scores)[0].sum(2)) for scores in _calls(device, dtype)
    ]
    return _far(pairs), SUMS


def _norms(_: str, device: str, dtype: torch.dtype) -> tuple[float, float]:
    draw = torch.Generator().manual_seed(1)
    key, value = torch.randn(2, BATCH, KV_HEADS, LENGTH, DIM, generator=draw).to(device, dtype)
    slices = torch.randn(HEADS, DIM, DIM, generator=draw).to(device)
    gram = slices.mT @ slices
    found = norms(key, value, Gram(whole=gram))
    wide = value.double().repeat_interleave(HEADS // KV_HEADS, dim=1)
    behind = torch.einsum("bhki,hij,bhkj->bhk", wide, gram.double(), wide).sqrt()
    assert found.output is not None
    pairs = ((found.key, key.double().norm(dim=-1)), (found.value, value.double().norm(dim=-1)), (found.output, behind))
    return _far([(ours / truth, torch.ones_like(truth)) for ours, truth in pairs]), SUMS


def _attention(_: str, device: str, dtype: torch.dtype) -> tuple[float, float]:
    draw = torch.Generator().manual_seed(2)
    value = torch.randn(BATCH, KV_HEADS, LENGTH, DIM, generator=draw).to(device, dtype)
    wide = value.double().repeat_interleave(HEADS // KV_HEADS, dim=1)
    pairs = [
        (run_attention(scores, value, wants_lse=True).output, probabilities(scores)[0] @ wide)
        for scores in _calls(device, dtype, plain=True)
    ]
    return _far(pairs), OUTPUT[dtype]


def _far(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    """The largest difference; NaN where there is one, which Python's max would lose."""
    return float(torch.stack([(ours.double() - truth).abs().amax() for ours, truth in pairs]).amax())
