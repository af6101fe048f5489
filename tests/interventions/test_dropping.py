"""Keys dropped in place of masked: the same results, without a mask."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sinklens as sl
from interventions.test_masking_models import LLADA, arm
from interventions.test_masking_rule import at
from sinklens.attention.call import AttentionCall
from sinklens.errors import UsageError
from sinklens.interventions.dropping import drop
from sinklens.interventions.mask_sinks import MaskSinks
from sinklens.interventions.random_keys import RandomKeys
from sinklens.interventions.ranking import Denial, deny
from sinklens.interventions.views import hide
from sinklens.kernels.forward import run_attention

PROMPT = [17, 42, 8, 59, 23, 61, 9, 31]


def call_of(seed: int, *, rows: int, heads: int, kv_heads: int, keys: int, queries: int) -> AttentionCall:
    torch.manual_seed(seed)
    key, value = torch.randn(2, rows, kv_heads, keys, 4, dtype=torch.float64)
    return AttentionCall(query=torch.randn(rows, heads, queries, 4, dtype=torch.float64), key=key, value=value)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 999),
    st.tuples(st.integers(1, 3), st.integers(3, 20), st.integers(1, 6)),
    st.sampled_from([(1, 1), (4, 4), (28, 4), (6, 2)]),
    st.integers(1, 2),
)
def test_dropping_equals_masking(seed: int, sizes: tuple[int, int, int], shared: tuple[int, int], top: int) -> None:
    (rows, keys, queries), (heads, kv_heads) = sizes, shared
    call = call_of(seed, rows=rows, heads=heads, kv_heads=kv_heads, keys=keys, queries=queries)
    targets = torch.rand(rows, heads, keys).argsort(-1)[..., :top]
    denial = deny(call, targets)
    dropped = drop(call, denial)
    assert dropped is not None
    assert dropped.mask is None
    assert dropped.key.shape == (rows, heads, keys - top, 4)
    masked = hide(call, denial.hidden)
    got, want = (run_attention(one.scores, one.value).output for one in (dropped, masked))
    torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-12)


def test_what_cannot_be_dropped_is_masked() -> None:
    call = call_of(0, rows=1, heads=2, kv_heads=2, keys=5, queries=3)
    listed = torch.tensor([[[True, False, False, False, False], [True, True, False, False, False]]])
    assert drop(call, Denial(listed=listed, spared=None)) is None  # heads lose different numbers
    equal = Denial(listed=listed[:, :1].expand(1, 2, 5), spared=None)
    assert drop(call, equal) is not None
    assert drop(replace(call, is_causal=True), equal) is None
    assert drop(replace(call, mask=torch.ones(5, dtype=torch.bool)), equal) is None
    assert drop(call, replace(equal, spared=torch.zeros(1, 2, 3, 5, dtype=torch.bool))) is None


@pytest.mark.parametrize("kind", [MaskSinks, RandomKeys])
@pytest.mark.parametrize("name", ["llada", "dream", "llama"])
def test_runs_are_the_same(golden: Path, name: str, kind: Any) -> None:
    speaker: Any = arm() if name == "llama" else sl.load(golden / name)
    samplers: dict[str, Any] = {
        "llada": LLADA,
        "dream": sl.DreamSampler(steps=6, length=8, alg="entropy"),
        "llama": sl.AutoregressiveSampler(length=8),
    }
    runs, doses = [], []
    for dropped in (False, True):
        with sl.intervene(speaker, kind(top=2, drop=dropped)) as lab:
            runs.append(sl.generate(speaker, PROMPT, samplers[name]).ids.tolist())
        doses.append(lab.doses)
        assert [dose.dropped for dose in lab.doses] == [dropped and dose.masked for dose in lab.doses]
    assert runs[0] == runs[1]
    for masked, other in zip(*doses, strict=True):
        assert (masked.removed, masked.largest) == pytest.approx((other.removed, other.largest), abs=1e-5)


def test_heads_that_lose_different_numbers_are_masked_and_the_dose_says_so(golden: Path) -> None:
    speaker = sl.load(golden / "llada")
    runs = []
    for dropped in (False, True):
        with sl.intervene(speaker, MaskSinks(epsilon=0.3, drop=dropped)) as lab:
            runs.append(sl.generate(speaker, PROMPT, LLADA).ids.tolist())
    assert runs[0] == runs[1]
    assert not all(dose.dropped for dose in lab.doses if dose.masked)


def test_dropped_keys_cannot_be_observed(golden: Path) -> None:
    speaker, ids = sl.load(golden / "llada"), torch.tensor([PROMPT])
    message = "drop=True while something else observes or changes this model"
    with sl.observe(speaker), sl.intervene(speaker, MaskSinks(top=1, drop=True)), torch.no_grad():
        speaker(ids)
        with pytest.raises(UsageError, match=message):
            speaker(ids)
    with sl.intervene(speaker, MaskSinks(top=1, drop=True)) as lab, torch.no_grad():
        speaker(ids)
        speaker(ids)
    assert [dose.dropped for dose in lab.doses] == [False] * speaker.spec.layers + [True] * speaker.spec.layers


def test_a_dropped_call_keeps_its_site() -> None:
    call = at(call_of(0, rows=1, heads=2, kv_heads=1, keys=5, queries=3), 1)
    dropped = drop(call, deny(call, torch.zeros(1, 2, 1, dtype=torch.long)))
    assert dropped is not None
    assert dropped.site is call.site
