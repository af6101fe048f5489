"""From rows to a result: small tables worked out by hand, and what may not change it."""

import json
import random
from math import log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.experiment_rows import cell_rows, random_rows, write_rows, write_table
from sinklens.errors import UsageError
from sinklens.evaluation.contrasts import dose_differs
from sinklens.evaluation.report import summarise

UNMASKED, SINKS = [1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0]
RANDOM = [[1, 1, 1, 0, 1, 0], [1, 0, 1, 1, 1, 0]]  # two draws: shares 1, 1/2, 1, 1/2, 1, 0


def six_problems(model: str = "tiny-llama", **options: Any) -> list[dict[str, Any]]:
    return [
        *cell_rows(model, "none", UNMASKED, **options),
        *cell_rows(model, "sinks:top=5", SINKS, dose=0.95, keys_removed=5.0, **options),
        *random_rows(model, "random:top=5", RANDOM, dose=0.2, keys_removed=5.0, **options),
    ]


def by(entries: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    found = [one for one in entries if all(one[name] == value for name, value in wanted.items())]
    assert len(found) == 1, f"{len(found)} entries with {wanted}"
    return found[0]


def test_cells_have_accuracy_dose_and_keys(tmp_path: Path) -> None:
    (family,) = summarise(write_rows(tmp_path, six_problems()))["families"]
    assert (family["model"], family["task"], family["causal"], family["n"]) == ("tiny-llama", "word_problems", True, 6)
    assert [cell["label"] for cell in family["cells"]] == ["unmasked", "5 sinks", "5 random"]
    unmasked, sinks, control = family["cells"]
    assert unmasked["accuracy"]["value"] == 5 / 6
    assert unmasked["accuracy"]["low"] == pytest.approx(0.4365, abs=1e-4)  # Wilson
    assert unmasked["accuracy"]["high"] == pytest.approx(0.9699, abs=1e-4)
    assert (unmasked["dose"], unmasked["keys_removed"], unmasked["dose_differs"]) == (None, None, None)
    assert sinks["accuracy"] == {"value": 0.0, "low": 0.0, "high": pytest.approx(0.3903, abs=1e-4), "n": 6}
    assert (sinks["dose"], sinks["keys_removed"], sinks["draws"], sinks["bootstrap"]) == (
        pytest.approx(0.95),
        5.0,
        1,
        None,
    )
    assert (control["accuracy"]["value"], control["draws"], control["accuracy"]["n"]) == (4 / 6, 2, 6)
    assert control["bootstrap"]["low"] < 4 / 6 < control["bootstrap"]["high"]
    assert control["dose_differs"] is True


def test_the_primary_contrast_stands_apart_and_the_rest_is_under_holm(tmp_path: Path) -> None:
    (family,) = summarise(write_rows(tmp_path, six_problems()))["families"]
    primary = family["primary"]
    assert (primary["a"], primary["b"], primary["kind"]) == ("sinks:top=5", "random:top=5", "control")
    assert primary["value"] == pytest.approx(-4 / 6)
    assert (primary["gained"], primary["lost"], primary["draws"]) == (0, 4, [1, 2])
    assert primary["p"] == primary["adjusted_p"] == pytest.approx(2 / 2**5)  # five problems, all one way
    assert primary["dose_differs"] is True
    assert primary["interval"] == "bootstrap"
    assert len(family["contrasts"]) == 2
    sinks, control = (by(family["contrasts"], a=a, b="none") for a in ("sinks:top=5", "random:top=5"))
    assert (sinks["value"], sinks["p"]) == (pytest.approx(-5 / 6), pytest.approx(2 / 2**5))
    # Two problems have one of three wrong, never the single answer: 4/9, and nothing else is likelier.
    assert (control["value"], control["p"]) == (pytest.approx(-1 / 6), pytest.approx(1.0))
    assert sinks["adjusted_p"] == pytest.approx(2 * 2 / 2**5)
    assert control["adjusted_p"] == pytest.approx(1.0)
    assert (sinks["dose_differs"], sinks["rejected"], sinks["robust"]) == (False, False, False)


def test_without_five_keys_the_largest_number_is_primary(tmp_path: Path) -> None:
    rows = cell_rows("m", "none", UNMASKED, causal=False)
    for top in (1, 3, 10):
        rows += cell_rows("m", f"sinks:top={top}", SINKS, causal=False)
    for top in (1, 3):
        rows += random_rows("m", f"random:top={top}", RANDOM, causal=False)
    (family,) = summarise(write_rows(tmp_path, rows))["families"]
    assert (family["primary"]["a"], family["primary"]["b"]) == ("sinks:top=3", "random:top=3")
    (alone,) = summarise(write_rows(tmp_path / "alone", rows[:12]))["families"]
    assert alone["primary"] is None
    assert len(alone["contrasts"]) == 1


def test_like_is_compared_with_like(tmp_path: Path) -> None:
    conditions = (
        "none", "sinks:top=5", "sinks:top=5,act=zero", "sinks:top=5,scope=model", "sinks:top=5,keys=recomputed",
        "sinks:top=1", "sinks:epsilon=3", "random:top=5,keys=recomputed", "next:top=5", "sinks:top=5,keys=cached",
    )  # fmt: skip
    rows = [row for text in conditions for row in cell_rows("tiny-llama", text, UNMASKED)]
    (family,) = summarise(write_rows(tmp_path, rows))["families"]
    found = {(one["kind"], one["a"], one["b"]) for one in family["contrasts"] if one["kind"] != "unmasked"}
    assert family["primary"] is None  # random keys are there, but recomputed, which is not the family's own
    assert found == {
        ("control", "sinks:top=5", "next:top=5"),
        ("control", "sinks:top=5,keys=cached", "next:top=5"),  # a causal model's keys are cached anyway
        ("control", "sinks:top=5,keys=recomputed", "random:top=5,keys=recomputed"),
        ("act", "sinks:top=5,act=zero", "sinks:top=5"),
        ("scope", "sinks:top=5,scope=model", "sinks:top=5"),
        ("keys", "sinks:top=5,keys=recomputed", "sinks:top=5"),
    }
    assert sum(one["kind"] == "unmasked" for one in family["contrasts"]) == len(conditions) - 1


@pytest.mark.parametrize(
    ("condition", "causal", "read", "plain"),
    [
        ("sinks:top=5,queries=all", True, {"queries": "all", "keys": "recomputed"}, False),
        ("sinks:top=5,keys=recomputed", True, {"queries": "all", "keys": "recomputed"}, False),
        ("sinks:top=5,source=same_input", False, {"source": "same_input", "measure": "shadow"}, False),
        ("sinks:top=5,rank_by=last_row", True, {"rank_by": "last_row", "queries": "last", "keys": "cached"}, True),
        ("sinks:top=5,measure=before,scope=head", False, {"rank_by": "received", "prefill": "clean"}, True),
        ("sinks:top=5,act=zero", False, {"act": "zero", "keys": "recomputed"}, False),
    ],
)
def test_settings_are_what_the_model_did(
    tmp_path: Path, condition: str, causal: bool, read: dict[str, str], plain: bool
) -> None:
    (family,) = summarise(write_rows(tmp_path, cell_rows("m", condition, UNMASKED, causal=causal)))["families"]
    (cell,) = family["cells"]
    assert {name: cell["settings"][name] for name in read} == read
    assert cell["plain"] is plain


def changes(folder: Path, *conditions: str, causal: bool = True) -> set[tuple[str, str, str]]:
    rows = [row for text in conditions for row in cell_rows("m", text, UNMASKED, causal=causal)]
    (family,) = summarise(write_rows(folder, rows))["families"]
    return {(one["kind"], one["a"], one["b"]) for one in family["contrasts"]}


def test_a_changed_setting_is_compared_with_cells_that_differ_in_nothing_else(tmp_path: Path) -> None:
    plain, everyone = "sinks:top=5", "sinks:top=5,queries=all"
    assert changes(tmp_path / "own", plain, "sinks:top=5,rank_by=last_row") == set()
    # All queries of a causal model can be denied where keys are recomputed alone: it is the same as to recompute them.
    assert changes(tmp_path / "all", plain, everyone) == {("keys", everyone, plain)}
    both = "sinks:top=5,keys=recomputed,queries=all"
    assert changes(tmp_path / "both", plain, both) == {("keys", both, plain)}
    newest, written = "sinks:top=5,keys=recomputed,queries=last", "sinks:top=5,queries=generated"
    assert changes(tmp_path / "queries", plain, everyone, newest, written) == {
        ("keys", everyone, plain),
        ("keys", newest, plain),
        ("queries", newest, everyone),
        ("queries", written, everyone),
    }
    shadow, now = "sinks:top=5,measure=shadow", "sinks:top=5,source=same_input"
    assert changes(tmp_path / "source", plain, shadow, now, causal=False) == {
        ("measure", shadow, plain),
        ("source", now, plain),
    }
    assert changes(tmp_path / "controls", everyone, "random:top=5,keys=recomputed") == {
        ("control", everyone, "random:top=5,keys=recomputed")
    }


def test_rows_that_do_not_say_the_family_are_read_as_they_are_written(tmp_path: Path) -> None:
    rows = [cell_rows("m", text, UNMASKED) for text in ("sinks:top=5", "sinks:top=5,keys=cached", "random:top=5")]
    unsaid = [row | {"causal": None} for some in rows for row in some]
    (family,) = summarise(write_rows(tmp_path, unsaid))["families"]
    assert [cell["settings"]["keys"] for cell in family["cells"]] == [None, "cached", None]
    assert family["primary"]["a"] == "sinks:top=5"
    assert ("keys", "sinks:top=5,keys=cached") in {(one["kind"], one["a"]) for one in family["contrasts"]}


def test_all_queries_stand_in_the_square_as_recomputed(tmp_path: Path) -> None:
    rows = [
        row | ({"condition": "sinks:top=5,queries=all"} if row["condition"].endswith("recomputed") else {})
        for row in two_models()
    ]
    (square,) = summarise(write_rows(tmp_path, rows))["squares"]
    corners = {(one["model"], one["keys"]): one["condition"] for one in square["corners"]}
    assert corners["tiny-llama", "recomputed"] == "sinks:top=5,queries=all"


def test_only_problems_that_every_cell_has_count(tmp_path: Path) -> None:
    rows = [
        *cell_rows("tiny-llama", "none", [1, 1, 1, 0]),
        *cell_rows("tiny-llama", "sinks:top=5", [0, 0, 1], problems=[1, 0, 2]),
        *cell_rows("tiny-llama", "random:top=5", [1, 1, 1], problems=[0, 1, 2]),
        *cell_rows("tiny-llama", "random:top=5,draw=1", [0, 0], problems=[0, 1]),  # a draw is behind
    ]
    (family,) = summarise(write_rows(tmp_path, rows))["families"]
    assert family["n"] == 2
    assert family["left_out"] == {"none": 2, "sinks:top=5": 1}
    assert [cell["accuracy"]["value"] for cell in family["cells"]] == [1.0, 0.0, 0.5]
    rows += cell_rows("tiny-llama", "sinks:top=1", [1], problems=[9])
    (family,) = summarise(write_rows(tmp_path, rows))["families"]
    assert (family["n"], family["cells"], family["primary"], family["contrasts"]) == (0, [], None, [])


def test_robust_needs_enough_problems(tmp_path: Path) -> None:
    for n, robust in ((132, False), (133, True)):
        rows = [row for text in ("none", "sinks:top=1") for row in cell_rows("m", text, [1] * n)]
        (family,) = summarise(write_rows(tmp_path / str(n), rows))["families"]
        assert family["contrasts"][0]["robust"] is robust


def two_models(baseline: int = 10) -> list[dict[str, Any]]:
    """Ten problems; how many are right, in the order of their numbers."""
    right = {
        "tiny-llama": {"none": 10, "sinks:top=5": 0, "sinks:top=5,keys=recomputed": 4},
        "tiny-llada": {"none": baseline, "sinks:top=5": 7, "sinks:top=5,keys=cached": 6},
    }
    return [
        row
        for model, cells in right.items()
        for text, count in cells.items()
        for row in cell_rows(model, text, [n < count for n in range(10)], dose=None if text == "none" else 0.9)
    ]


def test_interactions_are_differences_of_differences(tmp_path: Path) -> None:
    (found,) = summarise(write_rows(tmp_path, two_models()))["interactions"]
    assert (found["causal"], found["diffusion"]) == ("tiny-llama", "tiny-llada")
    assert (found["top"], found["against"]) == (5, "unmasked")
    assert found["points"]["value"] == pytest.approx(-1.0 + 0.3)
    logits = [log((right + 0.5) / (10 - right + 0.5)) for right in (0, 10, 7, 10)]
    assert found["log_odds"]["value"] == pytest.approx(logits[0] - logits[1] - logits[2] + logits[3])
    assert found["p"] == found["adjusted_p"] == pytest.approx(2 / 2**7)
    assert (found["dose"], found["dose_differs"]) == ([[0.9, 0.9]], False)


def test_a_model_that_cannot_do_the_task_has_no_interaction(tmp_path: Path) -> None:
    result = summarise(write_rows(tmp_path, two_models(baseline=5)))
    (found,) = result["interactions"]
    assert found["refused"] == "baselines are 1.0000 and 0.5000; both must be at least 0.6"
    assert (found["points"], found["p"], found["adjusted_p"]) == (None, None, None)
    assert result["squares"][0]["across"][0]["refused"] == found["refused"]


def test_interactions_use_the_problems_that_both_models_have(tmp_path: Path) -> None:
    rows = two_models()
    rows = [row for row in rows if row["model"] == "tiny-llama" or row["problem"] >= 5]
    result = summarise(write_rows(tmp_path, rows))
    (found,) = result["interactions"]
    assert found["n"] == 5
    assert found["points"]["value"] == pytest.approx(-1.0 + 3 / 5)
    # Problems 5 to 9. Cached and recomputed: none and none of tiny-llama, 1 and 2 of tiny-llada.
    assert result["squares"][0]["across"][0]["points"]["value"] == pytest.approx(0.0 - (1 - 2) / 5)


def test_different_doses_of_two_models_are_flagged(tmp_path: Path) -> None:
    rows = [row | ({"dose": 0.7} if row["model"] == "tiny-llada" and row["dose"] else {}) for row in two_models()]
    result = summarise(write_rows(tmp_path, rows))
    assert result["interactions"][0]["dose_differs"] is True
    assert result["squares"][0]["across"][0]["dose_differs"] is True
    assert [one["dose_differs"] for one in result["squares"][0]["within"]] == [False, False]


def test_the_square_of_cached_and_recomputed(tmp_path: Path) -> None:
    (square,) = summarise(write_rows(tmp_path, two_models()))["squares"]
    assert (square["task"], square["top"]) == ("word_problems", 5)
    corners = {(one["model"], one["keys"]): one["difference"]["value"] for one in square["corners"]}
    assert corners == pytest.approx(
        {
            ("tiny-llama", "cached"): -1.0,
            ("tiny-llama", "recomputed"): -0.6,
            ("tiny-llada", "cached"): -0.4,
            ("tiny-llada", "recomputed"): -0.3,
        }
    )
    within = {one["model"]: one["points"]["value"] for one in square["within"]}
    assert within == pytest.approx({"tiny-llama": -0.4, "tiny-llada": -0.1})
    (across,) = square["across"]
    assert across["points"]["value"] == pytest.approx(-0.3)
    logit = [log((right + 0.5) / (10 - right + 0.5)) for right in (0, 4, 6, 7)]
    assert across["log_odds"]["value"] == pytest.approx(logit[0] - logit[1] - logit[2] + logit[3])


def test_a_square_has_the_p_of_its_families(tmp_path: Path) -> None:
    result = summarise(write_rows(tmp_path, two_models()))
    for within in result["squares"][0]["within"]:
        contrast = by(by(result["families"], model=within["model"])["contrasts"], kind="keys")
        assert (within["p"], within["adjusted_p"]) == (contrast["p"], contrast["adjusted_p"])


@pytest.mark.parametrize(
    ("a", "b", "differs"), [(0.9, 0.8, False), (0.9, 0.79, True), (0.5, None, None), (0.2, 0.31, True)]
)
def test_doses_more_than_a_tenth_apart_differ(a: float, b: float | None, differs: bool | None) -> None:
    assert dose_differs(a, b) is differs


def test_a_run_that_may_stop_early_has_confidence_sequences(tmp_path: Path) -> None:
    write_rows(tmp_path, six_problems())
    (tmp_path / "experiment.json").write_text(json.dumps({"stop_early": True}))
    result = summarise(tmp_path)
    assert result["rules"]["watched"] == 1
    (family,) = result["families"]
    assert family["primary"]["interval"] == "confidence sequence"
    assert family["primary"]["level"] == 0.95
    sinks = by(family["contrasts"], a="sinks:top=5", b="none")
    # Five problems lost, none gained: the wealth is 2^5 B(1/2, 11/2) / B(1/2, 1/2) = 63 / 8.
    assert sinks["p"] == pytest.approx(8 / 63)
    assert sinks["low"] < -5 / 6 < sinks["high"]
    assert sinks["high"] > -0.1  # six problems cannot rule out much
    (tmp_path / "experiment.json").write_text(json.dumps({"stop_early": False}))
    assert summarise(tmp_path)["families"][0]["primary"]["interval"] == "bootstrap"


def test_watching_several_contrasts_costs_level(tmp_path: Path) -> None:
    write_rows(tmp_path, [*six_problems(), *six_problems("tiny-llada")])
    (tmp_path / "experiment.json").write_text(json.dumps({"stop_early": True}))
    primary = summarise(tmp_path)["families"][0]["primary"]
    assert primary["level"] == 1 - 1 / 40
    assert primary["adjusted_p"] == pytest.approx(min(1.0, 2 * primary["p"]))


FIVE = {"a": "sinks:top=5", "b": "random:top=5", "draws": 2}


def declare(folder: Path, contrast: Any, *, models: tuple[str, ...] = ("tiny-llama",), stop_early: bool = False) -> Any:
    """The result of a folder whose experiment.json declares one contrast for each model."""
    told = {
        "stop_early": stop_early,
        "primary": {model: {"word_problems": contrast} for model in models},
        "watched": len(models) if stop_early else None,
    }
    (folder / "experiment.json").write_text(json.dumps(told))
    return summarise(folder)


def test_the_primary_contrast_is_the_one_that_was_declared(tmp_path: Path) -> None:
    rows = [
        *six_problems(),
        *cell_rows("tiny-llama", "sinks:top=1", UNMASKED),
        *random_rows("tiny-llama", "random:top=1", RANDOM),
    ]
    write_rows(tmp_path, rows)
    (family,) = declare(tmp_path, FIVE | {"a": "sinks:top=1", "b": "random:top=1"})["families"]
    assert (family["primary"]["a"], family["primary"]["b"]) == ("sinks:top=1", "random:top=1")
    assert family["no_primary"] is None
    by(family["contrasts"], a="sinks:top=5", b="random:top=5")  # one of the others then


@pytest.mark.parametrize(
    ("there", "contrast", "reason"),
    [
        ((1, 2), FIVE, "declared as sinks:top=5 - random:top=5; there are no rows yet of sinks:top=5, random:top=5"),
        ((5, 2), FIVE | {"draws": 5}, "declared as sinks:top=5 - random:top=5; random:top=5 has 2 of 5 draws yet"),
        ((5, 2), None, "none was declared: no cells of sinks and as many random keys"),
    ],
)
def test_a_declared_contrast_without_rows_is_replaced_by_none(
    tmp_path: Path, there: tuple[int, int], contrast: Any, reason: str
) -> None:
    top, draws = there
    rows = [
        *cell_rows("tiny-llama", "none", UNMASKED),
        *cell_rows("tiny-llama", f"sinks:top={top}", SINKS),
        *random_rows("tiny-llama", f"random:top={top}", RANDOM[:draws]),
    ]
    write_rows(tmp_path, rows)
    (family,) = declare(tmp_path, contrast)["families"]
    assert (family["primary"], family["no_primary"]) == (None, reason)
    by(family["contrasts"], a=f"sinks:top={top}", b=f"random:top={top}")  # it is under Holm with the others


def test_why_there_is_no_primary_contrast(tmp_path: Path) -> None:
    write_rows(tmp_path, cell_rows("tiny-llama", "none", UNMASKED))
    (family,) = summarise(tmp_path)["families"]
    assert family["no_primary"] == "no cells of sinks and as many random keys"
    apart = [row | {"problem": row["problem"] + 9} for row in cell_rows("tiny-llama", "sinks:top=5", SINKS)]
    write_rows(tmp_path, [*cell_rows("tiny-llama", "random:top=5", SINKS), *apart])
    assert summarise(tmp_path)["families"][0]["no_primary"] == "no problem that all cells have"
    (family,) = declare(tmp_path, FIVE)["families"]
    assert family["no_primary"] == "declared as sinks:top=5 - random:top=5; no problem that all cells have"
    (family,) = declare(tmp_path, FIVE, models=("another",))["families"]
    assert family["no_primary"] == "none was declared for tiny-llama on word_problems"


def test_a_contrast_is_watched_before_it_has_rows(tmp_path: Path) -> None:
    write_rows(tmp_path, six_problems())
    result = declare(tmp_path, FIVE, models=("tiny-llama", "tiny-llada"), stop_early=True)
    assert result["rules"]["watched"] == 2
    primary = result["families"][0]["primary"]
    assert primary["level"] == 1 - 1 / 40
    assert primary["adjusted_p"] == pytest.approx(min(1.0, 2 * primary["p"]))
    assert declare(tmp_path, FIVE)["rules"]["watched"] is None


def test_thresholds_have_keys_and_seconds(tmp_path: Path) -> None:
    rows = [
        *cell_rows("m", "none", [1, 1]),
        *cell_rows("m", "sinks:epsilon=3", [1, 0], keys_removed=1.5, dose=1.0),
    ]
    write_rows(tmp_path, rows)
    timed = {"model": "m", "task": "word_problems", "condition": "sinks:epsilon=3"}
    write_table(tmp_path / "timings/a.parquet", [timed | {"problems": 2, "seconds": 60.0, "followed": True}])
    write_table(tmp_path / "timings/b.parquet", [timed | {"problems": 4, "seconds": 2.0, "followed": False}])
    write_table(tmp_path / "timings/c.parquet", [timed | {"problems": 1, "seconds": 1.0, "followed": False}])
    unmasked, threshold = summarise(tmp_path)["families"][0]["cells"]
    assert (threshold["epsilon"], threshold["keys_removed"], threshold["top"]) == (3.0, 1.5, None)
    assert threshold["seconds"] == pytest.approx(3 / 5)  # what was followed took longer, and is left out
    assert unmasked["seconds"] is None


def test_flows_are_means_over_problems(tmp_path: Path) -> None:
    write_rows(tmp_path, six_problems())
    flow = {"model": "tiny-llama", "task": "word_problems", "condition": "sinks:top=5", "null": 0.0, "new_sinks": 0.5}
    first = flow | {"problems": 3, "neighbours": 0.2, "next_ranked": 0.3, "others": 0.5}
    second = flow | {"problems": 1, "neighbours": 0.6, "next_ranked": 0.3, "others": 0.1}
    empty = flow | {"problems": 9, "neighbours": None, "next_ranked": None, "others": None, "null": None}
    write_table(tmp_path / "flows/a.parquet", [first, empty])
    write_table(tmp_path / "flows/b.parquet", [second])
    (found,) = summarise(tmp_path)["flows"]
    assert (found["label"], found["n"]) == ("5 sinks", 4)
    assert found["neighbours"] == pytest.approx(0.3)
    assert found["others"] == pytest.approx(0.4)
    assert found["new_sinks"] == 0.5


def test_the_result_is_json(tmp_path: Path) -> None:
    result = summarise(write_rows(tmp_path, two_models()))
    assert json.loads(json.dumps(result, allow_nan=False)) == result


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32), files=st.integers(1, 4))
def test_the_order_of_rows_does_not_matter(seed: int, files: int) -> None:
    rows = [*two_models(), *random_rows("tiny-llama", "random:top=5", [[1] * 9 + [0], [0] * 3 + [1] * 7], dose=0.1)]
    shuffled = rows.copy()
    random.Random(seed).shuffle(shuffled)
    with TemporaryDirectory() as folder:
        plain = summarise(write_rows(Path(folder) / "plain", rows))
        assert summarise(write_rows(Path(folder) / "shuffled", shuffled, files=files)) == plain


@settings(max_examples=6, deadline=None)
@given(right=st.lists(st.booleans(), min_size=6, max_size=6), causal=st.booleans())
def test_another_model_changes_nothing_of_the_first(right: list[bool], causal: bool) -> None:
    other = [
        *cell_rows("other", "none", [*right, True], causal=causal),
        *cell_rows("other", "sinks:top=5", [*right, False], causal=causal, dose=0.3),
    ]
    with TemporaryDirectory() as folder:
        alone = summarise(write_rows(Path(folder) / "alone", six_problems()))
        both = summarise(write_rows(Path(folder) / "both", [*other, *six_problems()]))
    assert by(both["families"], model="tiny-llama") == alone["families"][0]


def test_a_problem_that_stands_twice_is_refused(tmp_path: Path) -> None:
    rows = six_problems()
    with pytest.raises(UsageError, match=r"problem 0 of tiny-llama, word_problems, test stands twice under 'none'"):
        summarise(write_rows(tmp_path, [*rows, rows[0]]))


def test_what_is_no_experiment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no rows/\*\.parquet; expected a folder that `sinklens mask --to` wrote"):
        summarise(tmp_path)
    write_table(tmp_path / "rows/a.parquet", [{"model": "m", "task": "t"}])
    with pytest.raises(UsageError, match=r"lack causal, split, condition, problem, right"):
        summarise(tmp_path)
    (tmp_path / "experiment.json").write_text("{")
    with pytest.raises(UsageError, match=r"experiment\.json is not JSON"):
        summarise(tmp_path)
    (tmp_path / "experiment.json").write_text("[]")
    with pytest.raises(UsageError, match=r"experiment\.json holds a list"):
        summarise(tmp_path)
