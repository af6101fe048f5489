"""What explains sink status: planted causes are found, others get nothing, deviances equal closed forms and oracles."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.sinks import logistic
from sinklens.sinks.arrays import Canvases, LayerArrays
from sinklens.sinks.cells import FACTORS, CellCounts, MergedCells, count_cells
from sinklens.sinks.explain import Explained, explain_sinks

STEPS, HEADS, KEYS, PROMPT, BLOCK, VOCABULARY, MASK_ID = 32, 200, 48, 16, 8, 12, 99


def run_of(sample: int, rng: np.random.Generator) -> Canvases:
    """A semi-autoregressive run in blocks of 8, one commit a step, over random tokens."""
    commit = np.concatenate([[-1] * PROMPT, *(8 * b + rng.permutation(BLOCK) for b in range((KEYS - PROMPT) // BLOCK))])
    masked = np.arange(STEPS)[:, None] <= commit
    first = PROMPT + np.arange(STEPS) // BLOCK * BLOCK
    return Canvases(
        sample=sample,
        prompt_length=PROMPT,
        ids=np.where(masked, MASK_ID, rng.integers(0, VOCABULARY, KEYS)),
        masked=masked,
        committed=np.arange(STEPS)[:, None] == commit,
        confidence=np.full((STEPS, KEYS), np.nan, np.float32),
        blocks=np.stack([first, first + BLOCK], axis=1),
    )


def layer_of(heads: int = HEADS, steps: int = STEPS, keys: int = KEYS) -> LayerArrays:
    one = np.ones((steps, 1, keys), np.float32)
    return LayerArrays(
        layer=0,
        steps=np.arange(steps),
        heads=np.arange(heads),
        received=np.ones((steps, heads, keys), np.float32),
        expected=one,
        viewers=one * keys,
    )


def drawn(rate: np.ndarray, rng: np.random.Generator, heads: int = HEADS) -> np.ndarray:
    return rng.random((len(rate), heads, rate.shape[1])) < rate[:, None]


def samples_with(rate_of: Callable[[Canvases], np.ndarray], *, samples: int = 6, seed: int = 0) -> list[MergedCells]:
    rng = np.random.default_rng(seed)
    found = []
    for number in range(samples):
        canvases = run_of(number, rng)
        rate = np.broadcast_to(rate_of(canvases), (STEPS, KEYS))
        found.append(count_cells(layer_of(), drawn(rate, rng), canvases=canvases).merge())
    return found


def cv(result: Explained) -> dict[str, tuple[float, float]]:
    """Factor to cross-validated (alone, unique)."""
    shares = {}
    for one in result.factors:
        assert one.alone_cv is not None and one.unique_cv is not None
        assert one.alone_cv.value is not None and one.unique_cv.value is not None
        shares[one.factor] = (one.alone_cv.value, one.unique_cv.value)
    return shares


def test_position_alone_is_found() -> None:
    high = np.random.default_rng(1).choice([0.05, 0.8], 33)
    place = np.arange(KEYS)
    bins = np.where(place == 0, 0, 1 + place * 32 // KEYS)
    shares = cv(explain_sinks(samples_with(lambda _: high[bins])))
    assert shares["position"][0] > 0.95
    assert shares["position"][1] > 0.9
    assert shares["token"][0] < 0.02 and abs(shares["token"][1]) < 0.005
    assert abs(shares["mask"][1]) < 0.005 and abs(shares["region"][1]) < 0.005


def test_token_alone_is_found() -> None:
    """Masked cells have the mean rate of the revealed ones, so that nothing but the token differs."""
    rates = np.linspace(-3, 3, VOCABULARY)

    def rate_of(canvases: Canvases) -> np.ndarray:
        logit = np.where(canvases.masked, 0.0, rates[np.where(canvases.masked, 0, canvases.ids)])
        return 1 / (1 + np.exp(-logit))

    shares = cv(explain_sinks(samples_with(rate_of)))
    assert shares["token"][0] > 0.95
    assert shares["token"][1] > 0.85
    for other in ("position", "mask", "region"):
        assert shares[other][0] < 0.05 and shares[other][1] < 0.01


def test_mask_state_alone_is_found_and_the_token_does_not_carry_it() -> None:
    shares = cv(explain_sinks(samples_with(lambda canvases: np.where(canvases.masked, 0.7, 0.05))))
    assert shares["mask"][0] > 0.98
    assert shares["mask"][1] > 0.05  # the rest is in region and position too: the future is masked
    assert abs(shares["token"][0]) < 0.01 and abs(shares["token"][1]) < 0.01
    assert abs(shares["position"][1]) < 0.01 and abs(shares["region"][1]) < 0.01


def test_region_alone_is_found() -> None:
    def rate_of(canvases: Canvases) -> np.ndarray:
        place, first = np.arange(KEYS), canvases.blocks[:, :1]
        return np.where((place >= first) & (place < first + BLOCK), 0.7, 0.05)

    shares = cv(explain_sinks(samples_with(rate_of)))
    assert shares["region"][0] > 0.98
    assert shares["region"][1] > 0.2
    assert abs(shares["token"][1]) < 0.01 and abs(shares["mask"][1]) < 0.01


def test_independent_status_is_explained_by_nothing() -> None:
    result = explain_sinks(samples_with(lambda _: np.array(0.3)))
    for alone, unique in cv(result).values():
        assert -0.05 < alone < 0.005 and -0.05 < unique < 0.005
    assert result.full is not None and result.full_cv is not None and result.full_cv.value is not None
    assert result.full > 0 > result.full_cv.value  # in-sample, noise is explained too


def test_what_is_peculiar_to_a_prompt_is_not_explained_in_another() -> None:
    """A rate of its own for every position of every sample: in-sample shares are large, validated ones are not."""
    rng = np.random.default_rng(3)
    result = explain_sinks(samples_with(lambda _: rng.random(KEYS) ** 4, samples=3))
    assert result.full is not None and result.full > 0.3
    assert all(alone < 0.05 for alone, _ in cv(result).values())


def oracle_deviance(cells: list[CellCounts], group: Callable[[int, np.ndarray], object]) -> float:
    """Of one rate for each group of cells, by loops in float64."""
    sinks: dict[object, float] = {}
    seen: dict[object, float] = {}
    every = [
        (group(one.sample, one.levels[c]), float(k), float(n))
        for one in cells
        for c, k, n in zip(one.combination, one.sinks, one.seen, strict=True)
    ]
    for name, k, n in every:
        sinks[name], seen[name] = sinks.get(name, 0) + k, seen.get(name, 0) + n
    total = 0.0
    for name, k, n in every:
        rate = sinks[name] / seen[name]
        total += 2 * k * np.log(k / (n * rate)) if k else 0.0
        total += 2 * (n - k) * np.log((n - k) / (n * (1 - rate))) if n > k else 0.0
    return total


def varied_cells(samples: int = 3, seed: int = 5) -> list[CellCounts]:
    rng = np.random.default_rng(seed)
    found = []
    for number in range(samples):
        canvases = run_of(number, rng)
        rate = 0.1 + 0.3 * rng.random(KEYS) + 0.3 * canvases.masked
        found.append(count_cells(layer_of(), drawn(rate, rng), canvases=canvases, bins=4))
    return found


@pytest.mark.parametrize("factor", ["position", "mask", "region"])
def test_a_single_factor_equals_its_closed_form(factor: str) -> None:
    cells = varied_cells()
    column = FACTORS.index(factor)
    null = oracle_deviance(cells, lambda sample, levels: 0)
    alone = oracle_deviance(cells, lambda sample, levels: int(levels[column]))
    result = explain_sinks([one.merge() for one in cells], ridge=1e-9)
    found = next(one for one in result.factors if one.factor == factor)
    assert found.alone == pytest.approx(1 - alone / null, abs=1e-7)


def dense_deviance(cells: list[CellCounts], factors: tuple[str, ...]) -> float:
    """Iteratively reweighted least squares on an explicit design matrix of all cells, without ridge."""
    levels = np.concatenate([one.levels[one.combination] for one in cells])
    sinks = np.concatenate([one.sinks for one in cells]).astype(float)
    seen = np.concatenate([one.seen for one in cells]).astype(float)
    design = [np.ones((len(levels), 1))]
    for name in factors:
        column = levels[:, FACTORS.index(name)]
        one_hot = (column[:, None] == np.unique(column[column >= 0])).astype(float)
        trials = seen @ one_hot
        design.append(np.where(column[:, None] >= 0, one_hot - trials / trials.sum(), 0.0))
    matrix = np.concatenate(design, axis=1)
    logit = np.full(len(levels), np.log(sinks.sum() / (seen.sum() - sinks.sum())))
    for _ in range(30):
        rate = 1 / (1 + np.exp(-logit))
        root = np.sqrt(seen * rate * (1 - rate))
        working = logit + (sinks - seen * rate) / root**2
        logit = matrix @ np.linalg.lstsq(matrix * root[:, None], working * root, rcond=1e-12)[0]
    likelihood = sinks @ logit - seen @ np.logaddexp(0, logit)
    return 2 * (sum(one.merge().best for one in cells) - float(likelihood))


def test_all_models_equal_an_explicit_design_matrix() -> None:
    cells = varied_cells(samples=2)
    result = explain_sinks([one.merge() for one in cells], ridge=1e-7)
    null, full = dense_deviance(cells, ()), dense_deviance(cells, FACTORS)
    assert result.full == pytest.approx(1 - full / null, abs=1e-5)
    for one in result.factors:
        rest = tuple(name for name in FACTORS if name != one.factor)
        assert one.alone == pytest.approx(1 - dense_deviance(cells, (one.factor,)) / null, abs=1e-5)
        assert one.unique == pytest.approx((dense_deviance(cells, rest) - full) / null, abs=1e-5)


def test_the_best_likelihood_is_that_of_one_rate_a_cell() -> None:
    cells = varied_cells(samples=1)[0]
    k, n = cells.sinks.astype(float), cells.seen.astype(float)
    expected = sum(
        (a * np.log(a / c) if a else 0.0) + ((c - a) * np.log((c - a) / c) if c > a else 0.0)
        for a, c in zip(k, n, strict=True)
    )
    assert cells.merge().best == pytest.approx(expected)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10_000), st.permutations(range(3)))
def test_in_sample_shares_are_nested_and_do_not_depend_on_names_or_order(seed: int, order: list[int]) -> None:
    cells = [one.merge() for one in varied_cells(seed=seed)]
    result = explain_sinks(cells, ridge=1e-7, draws=10)
    assert result.full is not None
    for one in result.factors:
        assert one.alone is not None and one.unique is not None
        assert -1e-6 <= one.alone <= result.full + 1e-6 and result.full <= 1
        assert -1e-6 <= one.unique <= result.full + 1e-6
    renamed = []
    for one in (cells[number] for number in order):
        levels = one.levels.copy()
        levels[:, 1] = np.where(levels[:, 1] < 0, -1, 1000 - 7 * levels[:, 1])
        renamed.append(replace(one, levels=levels))
    again = explain_sinks(renamed, ridge=1e-7, draws=10)
    assert again.full == pytest.approx(result.full, abs=1e-6)
    for one, other in zip(result.factors, again.factors, strict=True):
        assert other.alone == pytest.approx(one.alone, abs=1e-6)
        assert other.unique == pytest.approx(one.unique, abs=1e-6)


def test_layers_add_up_like_more_heads() -> None:
    rng = np.random.default_rng(0)
    canvases = run_of(4, rng)
    sinks = drawn(np.full((STEPS, KEYS), 0.3), rng)
    whole = count_cells(layer_of(), sinks, canvases=canvases)
    halves = [count_cells(layer_of(HEADS // 2), half, canvases=canvases) for half in np.split(sinks, 2, axis=1)]
    both = halves[0] + halves[1]
    np.testing.assert_array_equal(both.sinks, whole.sinks)
    np.testing.assert_array_equal(both.seen, whole.seen)
    assert both.merge().best == pytest.approx(whole.merge().best)


def test_levels_are_those_of_the_canvas() -> None:
    canvases = run_of(0, np.random.default_rng(0))
    cells = count_cells(layer_of(), np.zeros((STEPS, HEADS, KEYS), bool), canvases=canvases, bins=4)
    at = cells.levels[cells.combination].reshape(STEPS, KEYS, 4)
    assert at[0, :, 0].tolist() == [0, *[1] * 11, *[2] * 12, *[3] * 12, *[4] * 12]
    np.testing.assert_array_equal(at[..., 1], np.where(canvases.masked, -1, canvases.ids))
    np.testing.assert_array_equal(at[..., 2], canvases.masked)
    assert at[9, :, 3].tolist() == [0] * 16 + [1] * 8 + [2] * 8 + [3] * 16  # the second block is the current one


def test_only_heads_in_which_a_key_can_be_a_sink_are_counted() -> None:
    layer = layer_of(heads=4)
    received, viewers = layer.received.copy(), np.repeat(layer.viewers, 4, axis=1)
    received[:, 0, 5] = np.nan
    viewers[:, 1, 6] = 7
    canvases = run_of(0, np.random.default_rng(0))
    layer = replace(layer, received=received, viewers=viewers, expected=np.repeat(layer.expected, 4, axis=1))
    cells = count_cells(layer, np.ones((STEPS, 4, KEYS), bool), canvases=canvases)
    seen = cells.seen.reshape(STEPS, KEYS)
    assert (seen[:, 5:7] == 3).all() and (np.delete(seen, [5, 6], axis=1) == 4).all()
    np.testing.assert_array_equal(cells.sinks, cells.seen)
    lenient = count_cells(layer, np.ones((STEPS, 4, KEYS), bool), canvases=canvases, min_viewers=7)
    assert (lenient.seen.reshape(STEPS, KEYS)[:, 6] == 4).all()


def test_stored_steps_and_positions_that_are_not_there_yet() -> None:
    """An autoregressive run of which every other step is stored: cells exist from a token's first appearance on."""
    place, steps = np.arange(12), np.arange(8)
    there = place < 5 + steps[:, None]
    canvases = Canvases(
        sample=0,
        prompt_length=5,
        ids=np.where(there, place, -1),
        masked=np.zeros((8, 12), bool),
        committed=place == 5 + steps[:, None],
        confidence=np.full((8, 12), np.nan, np.float32),
        blocks=np.full((8, 2), -1),
    )
    layer = replace(layer_of(heads=3, steps=4, keys=12), steps=steps[::2])
    cells = count_cells(layer, np.zeros((4, 3, 12), bool), canvases=canvases, min_viewers=1)
    assert len(cells.combination) == 5 + 7 + 9 + 11
    assert set(cells.levels[:, 2]) == {0} and set(cells.levels[:, 3]) == {0, 1}
    assert set(cells.levels[:, 1]) == set(range(11))


def test_tokens_of_one_sample_only_are_pooled() -> None:
    tokens = np.array([-1, 7, 8, -1, 7, 9, 8])
    sample = np.array([0, 0, 0, 1, 1, 1, 1])
    pooled = logistic._pool_tokens(tokens, np.array([5.0, 1, 4, 5, 1, 9, 4]), sample=sample)
    assert pooled.tolist() == [0, 2, 1, 0, 2, 3, 1]  # 8 is read more often than 7; 9 stands in one sample
    unseen = logistic._pool_tokens(tokens, np.array([5.0, 1, 4, 5, 1, 9, 0]), sample=sample)
    assert unseen.tolist() == [0, 1, 2, 0, 1, 2, 2]
    alone = logistic._pool_tokens(tokens[:3], np.ones(3), sample=sample[:3])
    assert alone.tolist() == [0, 1, 2]  # in a single sample each has its own level


def test_the_most_frequent_tokens_keep_their_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logistic, "MOST_TOKENS", 3)
    result = explain_sinks([one.merge() for one in varied_cells()], draws=10)
    assert next(one.levels for one in result.factors if one.factor == "token") == 4


def test_one_sample_has_no_cross_validation() -> None:
    result = explain_sinks(samples_with(lambda canvases: np.where(canvases.masked, 0.7, 0.05), samples=1))
    assert result.samples == 1 and result.folds is None and result.full_cv is None
    assert all(one.alone_cv is None and one.unique_cv is None for one in result.factors)
    assert next(one.alone for one in result.factors if one.factor == "mask") > 0.95  # type: ignore[operator]


def test_every_sample_is_left_out_once_and_bounds_the_interval() -> None:
    cells = samples_with(lambda canvases: np.where(canvases.masked, 0.7, 0.05), samples=4)
    by_one, by_two = explain_sinks(cells), explain_sinks(cells, folds=2)
    assert (by_one.folds, by_two.folds) == (4, 2)
    assert by_one.full_cv is not None and by_one.full_cv.n == 4
    assert by_one.full_cv.low <= by_one.full_cv.value <= by_one.full_cv.high  # type: ignore[operator]


@pytest.mark.parametrize("status", [False, True])
def test_nothing_to_explain(status: bool) -> None:
    rng = np.random.default_rng(0)
    sinks = np.full((STEPS, 4, KEYS), status)
    cells = [count_cells(layer_of(4), sinks, canvases=run_of(number, rng)).merge() for number in range(2)]
    result = explain_sinks(cells)
    assert result.rate == float(status)
    assert result.full is None and result.full_cv is None
    assert all(one.alone is None and one.unique is None and one.alone_cv is None for one in result.factors)


def test_a_fold_that_trains_on_no_sink_or_no_trial_at_all_stays_finite() -> None:
    rng = np.random.default_rng(0)
    some, none = samples_with(lambda _: np.array(0.1), samples=2)
    none = replace(none, sinks=none.sinks * 0, best=0.0)
    result = explain_sinks([some, none])
    assert result.full_cv is not None and np.isfinite(result.full_cv.value)  # type: ignore[arg-type]
    blind = count_cells(layer_of(4), np.zeros((STEPS, 4, KEYS), bool), canvases=run_of(2, rng), min_viewers=1000)
    result = explain_sinks([some, blind.merge()])
    assert result.full_cv is not None and np.isfinite(result.full_cv.value)  # type: ignore[arg-type]
    assert explain_sinks([blind.merge()]).rate is None


def test_a_fold_is_fitted_as_if_the_others_were_all() -> None:
    cells = [one.merge() for one in varied_cells()]
    fold = logistic.Pooled.of(cells).of_samples(np.array([True, False, True]))
    others = logistic.Pooled.of([cells[0], cells[2]])
    for factors in ((), (0,), (0, 2, 3)):
        np.testing.assert_allclose(
            logistic.fit(fold, factors, ridge=5.0).values, logistic.fit(others, factors, ridge=5.0).values, atol=1e-5
        )


def test_one_rate_for_all_has_half_a_sink_in_one_trial_more() -> None:
    cells = logistic.Pooled.of([one.merge() for one in varied_cells(samples=1)])
    for factor in (1.0, 0.0):
        some = replace(cells, sinks=cells.sinks * factor)
        warm = logistic.fit(cells, (), ridge=0.5)
        rate = 1 / (1 + np.exp(-logistic.fit(some, (), ridge=0.5, start=warm).values[0]))
        assert rate == pytest.approx((some.sinks.sum() + 0.5) / (some.seen.sum() + 1), rel=1e-4)


def test_it_is_json() -> None:
    result = explain_sinks(samples_with(lambda _: np.array(0.2), samples=2), draws=20)
    document = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert [one["factor"] for one in document["factors"]] == list(FACTORS)
    assert document["samples"] == 2 and document["cells"] == 2 * STEPS * KEYS


def test_the_code_of_the_page_on_statistics_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(code, {})
    assert "position" in capsys.readouterr().out


def test_wrong_arguments_are_refused() -> None:
    cells = varied_cells(samples=2)
    with pytest.raises(UsageError, match="cells of samples 0 and 1 do not match; add layers of one sample"):
        cells[0] + cells[1]
    with pytest.raises(UsageError, match="bins is 0; expected at least 1 stretch"):
        count_cells(
            layer_of(), np.zeros((STEPS, HEADS, KEYS), bool), canvases=run_of(0, np.random.default_rng(0)), bins=0
        )
    with pytest.raises(UsageError, match=r"folds is 1 and ridge 0\.5; expected at least 2 folds"):
        explain_sinks([cells[0].merge()], folds=1)
    with pytest.raises(UsageError, match=r"folds is 5 and ridge 0\.0; expected at least 2 folds and a ridge above 0"):
        explain_sinks([cells[0].merge()], ridge=0.0)
    with pytest.raises(UsageError, match="no samples to explain; expected at least one entry"):
        explain_sinks([])
