"""Attention received: every implementation against the float64 oracle, on random problems of every kind."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from kernels.problems import Problem, problems
from sinklens.errors import KernelError, SinklensError
from sinklens.kernels.received import attention_received, resolve_impl

RELAXED = [HealthCheck.too_slow, HealthCheck.data_too_large]
ALL = ("float32", "bfloat16", "float16")


def check(problem: Problem, impl: str) -> None:
    truth = problem.truth()
    result = attention_received(
        problem.query,
        problem.key,
        codes=problem.codes,
        groups=problem.groups,
        entropy=True,
        impl=impl,
        **problem.options,
    )
    assert result.impl == impl
    codes = problem.codes.cpu().numpy()
    for group in range(problem.groups):
        counted = codes == group
        got = result.sums.by_group[group].double().cpu().numpy()
        assert (np.abs(got - truth.received(counted)) <= problem.allowed(truth, counted)).all()
        seen_by = np.broadcast_to(result.uniform.viewers_by_group[group].double().cpu().numpy(), got.shape)
        np.testing.assert_array_equal(seen_by, truth.viewers(counted))
    counted = codes >= 0
    allowed = problem.allowed(truth, counted)
    total = result.total.double().cpu().numpy()
    assert (np.abs(total - truth.received(counted)) <= allowed).all()
    assert not total[~truth.visible.any(-2)].any()  # what nobody may see gets exactly 0
    shape = total.shape
    expected = np.broadcast_to(result.expected.double().cpu().numpy(), shape)
    np.testing.assert_allclose(expected, truth.expected(counted), rtol=1e-6, atol=1e-7)
    viewers = np.broadcast_to(result.viewers.double().cpu().numpy(), shape)
    np.testing.assert_array_equal(viewers, truth.viewers(counted))
    null = 0.0
    if problem.options["sink_logits"] is not None:
        assert result.sums.null_mass is not None
        null = result.sums.null_mass.double().cpu().numpy()
    rows = np.einsum("bhq,bq->bh", truth.visible.any(-1).astype(float), counted.astype(float))
    np.testing.assert_allclose(total.sum(-1) + null, rows, rtol=1e-5, atol=allowed.max() * shape[-1])
    assert result.sums.entropy is not None
    entropy = result.sums.entropy.double().cpu().numpy()
    np.testing.assert_allclose(entropy, truth.entropy(), atol=2e-4)


@settings(max_examples=25, deadline=None, suppress_health_check=RELAXED)
@given(problems(dtypes=(*ALL, "float64")))
def test_reference(problem: Problem) -> None:
    check(problem, "reference")


@settings(max_examples=60, deadline=None, suppress_health_check=RELAXED)
@given(problems(dtypes=(*ALL, "float64")))
def test_chunked(problem: Problem) -> None:
    check(problem, "chunked")


@settings(max_examples=20, deadline=None, suppress_health_check=RELAXED)
@given(problems(dtypes=(*ALL, "float64")))
def test_chunked_in_many_slabs(problem: Problem) -> None:
    """With room for a single row at a time, the same sums."""
    from sinklens.kernels import chunked, uniform

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "MOST_ELEMENTS", 1)
        patch.setattr(uniform, "SLAB_ELEMENTS", 1)
        check(problem, "chunked")


@settings(max_examples=12, deadline=None, suppress_health_check=RELAXED)
@given(problems(dtypes=ALL))
def test_triton_in_the_interpreter(problem: Problem) -> None:
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("the GPU suite runs the compiled kernel")
    check(problem, "triton")


# One row, one compilation: dtype, head dims, mask, softcap, sinks, groups.
COMPILED = [
    ("bfloat16", 128, ("none",), None, False, 1),
    ("bfloat16", 64, ("causal",), None, False, 3),
    ("bfloat16", 24, ("bool", "per_head", "padding"), None, False, 1),
    ("float16", 64, ("float", "float_hidden"), None, False, 2),
    ("float16", 16, ("causal",), 2.0, True, 8),
    ("float32", 64, ("none",), None, True, 1),
    ("float32", 3, ("float", "float_hidden"), 2.0, True, 4),
    ("float32", 256, ("bool",), None, False, 1),
]


@pytest.mark.gpu
@pytest.mark.parametrize("impl", ["triton", "chunked"])
@pytest.mark.parametrize("row", COMPILED, ids=str)
def test_on_the_gpu(row: tuple[str, int, tuple[str, ...], float | None, bool, int], impl: str) -> None:
    dtype, dim, kinds, softcap, sinks, groups = row

    @settings(max_examples=8, deadline=None, suppress_health_check=RELAXED)
    @given(
        problems(
            dtypes=(dtype,), most=300, dims=(dim,), kinds=kinds, softcaps=(softcap,), sinks=(sinks,),
            groups_drawn=(groups,),
        )
    )  # fmt: skip
    def holds(problem: Problem) -> None:
        check(problem.to("cuda"), impl)

    holds()


MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "windowed": {"mask": (torch.arange(40)[:, None] - torch.arange(40)[None]).abs() < 5},
    "padded": {"mask": (torch.arange(40) > 6)[None, None, None]},
    "causal window": {"mask": torch.ones(40, 40).tril().triu(-4).bool()},
}


@pytest.mark.parametrize("impl", ["reference", "chunked", "triton"])
@pytest.mark.parametrize("name", MASKS)
def test_uniform_attention_has_fair_shares_of_one(name: str, impl: str) -> None:
    if impl == "triton":
        pytest.importorskip("triton")
    device = "cuda" if impl == "triton" and torch.cuda.is_available() else "cpu"
    options = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in MASKS[name].items()}
    query = torch.zeros(2, 3, 40, 16, device=device)
    fair = attention_received(query, torch.randn_like(query), impl=impl, **options).fair_share
    seen = ~fair.isnan()
    assert seen.any(dim=-1).all()
    torch.testing.assert_close(fair[seen], torch.ones_like(fair[seen]), atol=2e-6, rtol=0)


def test_rectangular_uniform_attention_has_fair_shares_of_one() -> None:
    query, key = torch.zeros(1, 2, 7, 16), torch.randn(1, 1, 19, 16)
    fair = attention_received(query, key, impl="chunked").fair_share
    torch.testing.assert_close(fair, torch.ones_like(fair), atol=1e-6, rtol=0)


def test_a_single_query_is_its_own_row() -> None:
    query, key = torch.randn(1, 4, 1, 8), torch.randn(1, 2, 9, 8)
    rows = torch.softmax(query @ key.repeat_interleave(2, 1).transpose(-1, -2) * 8**-0.5, dim=-1)[:, :, 0]
    torch.testing.assert_close(attention_received(query, key).total, rows)


def test_an_empty_group_is_zero() -> None:
    query = torch.randn(1, 1, 5, 8)
    codes = torch.zeros(1, 5, dtype=torch.int32)
    sums = attention_received(query, query, codes=codes, groups=3).sums.by_group
    assert not sums[1:].any()
    torch.testing.assert_close(sums[0].sum(), torch.tensor(5.0))


@pytest.mark.parametrize("impl", ["reference", "chunked", "triton"])
@pytest.mark.parametrize("sink", [-200.0, 0.0, 200.0])
def test_sink_logits_of_any_size_and_rows_that_see_nothing(impl: str, sink: float) -> None:
    """A row that sees nothing gives nothing, to the null term neither; a huge null logit takes all of the others."""
    if impl == "triton":
        pytest.importorskip("triton")
    device = "cuda" if impl == "triton" and torch.cuda.is_available() else "cpu"
    query = torch.zeros(1, 2, 6, 16, device=device)
    mask = torch.ones(6, 6, dtype=torch.bool, device=device)
    mask[2] = False
    sinks = torch.full((2,), sink, device=device)
    result = attention_received(query, query, mask=mask, sink_logits=sinks, impl=impl, entropy=True)
    share = 1 / (6 + np.exp(sink)) if sink < 100 else 0.0
    torch.testing.assert_close(result.total.cpu(), torch.full((1, 2, 6), 5 * share), atol=1e-6, rtol=1e-5)
    assert result.sums.null_mass is not None
    torch.testing.assert_close(result.sums.null_mass.cpu(), torch.full((1, 2), 5 * (1 - 6 * share)), atol=1e-5, rtol=0)
    assert result.sums.entropy is not None
    assert not result.sums.entropy[:, :, 2].any()


def test_auto_is_chunked_on_a_cpu() -> None:
    assert resolve_impl("auto", torch.device("cpu")) == "chunked"


def test_an_unknown_implementation_lists_the_known() -> None:
    query = torch.randn(1, 1, 2, 8)
    with pytest.raises(SinklensError, match="unknown impl 'tritn'; expected one of 'auto', 'reference', 'chunked'"):
        attention_received(query, query, impl="tritn")


def test_triton_refuses_float64_instead_of_falling_back() -> None:
    pytest.importorskip("triton")
    query = torch.randn(1, 1, 2, 8, dtype=torch.float64)
    with pytest.raises(KernelError, match=r"takes float32, bfloat16 and float16, not torch.float64"):
        attention_received(query, query, impl="triton")


def test_triton_refuses_very_wide_heads() -> None:
    pytest.importorskip("triton")
    query = torch.randn(1, 1, 2, 512)
    with pytest.raises(KernelError, match="up to 256 dims, not 512"):
        attention_received(query, query, impl="triton")


def test_heads_that_cannot_be_shared_are_refused() -> None:
    with pytest.raises(SinklensError, match="3 query heads cannot share 2 key heads"):
        attention_received(torch.randn(1, 3, 2, 8), torch.randn(1, 2, 2, 8))


def test_too_many_groups_are_refused() -> None:
    query = torch.randn(1, 1, 2, 8)
    with pytest.raises(SinklensError, match="10 query groups; 1 to 8"):
        attention_received(query, query, groups=10)


def test_a_mask_that_does_not_fit_is_refused() -> None:
    query = torch.randn(1, 1, 4, 8)
    with pytest.raises(SinklensError, match=r"mask of shape \(3, 4\) does not broadcast"):
        attention_received(query, query, mask=torch.ones(3, 4, dtype=torch.bool))
