"""Squares of cached and recomputed keys: which contrasts share their level, and that one number is told once."""

import json
from pathlib import Path
from typing import Any

import pytest

from evaluation.experiment_rows import cell_rows, write_rows
from sinklens.evaluation.across import squares
from sinklens.evaluation.cells import read_families
from sinklens.evaluation.report import summarise
from sinklens.report.masking_sections import square_section
from sinklens.report.masking_words import chance, points

# How many of 20 problems are right, the first so many: unmasked, then cached and recomputed by number of sinks.
RIGHT = {
    "tiny-llama": (20, {1: (12, 20), 3: (8, 15), 5: (2, 14)}),
    "tiny-llada": (20, {1: (19, 18), 3: (17, 17), 5: (11, 12)}),
}


def rows(counts: dict[str, Any] = RIGHT) -> list[dict[str, Any]]:
    found = []
    for model, (unmasked, tops) in counts.items():
        other = "recomputed" if "llama" in model else "cached"
        right = {"none": unmasked}
        for top, by_keys in tops.items():
            for keys, count in zip(("cached", "recomputed"), by_keys, strict=True):
                right[f"sinks:top={top}" + (f",keys={keys}" if keys == other else "")] = count
        for text, count in right.items():
            dose = None if text == "none" else 0.9
            found += cell_rows(model, text, [number < count for number in range(20)], dose=dose)
    return found


def judged_squares(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    result = summarise(folder)
    return result, squares(read_families(folder), judged=result["families"])


def keys_contrast(result: dict[str, Any], model: str, top: int) -> dict[str, Any]:
    (family,) = (one for one in result["families"] if one["model"] == model)
    (found,) = (one for one in family["contrasts"] if one["kind"] == "keys" and f"top={top}" in one["a"])
    return dict(found)


@pytest.mark.parametrize("stop_early", [False, True])
def test_a_model_has_the_numbers_of_its_family(tmp_path: Path, stop_early: bool) -> None:
    write_rows(tmp_path, rows())
    (tmp_path / "experiment.json").write_text(json.dumps({"stop_early": stop_early}))
    result, found = judged_squares(tmp_path)
    assert [square["top"] for square in found] == [1, 3, 5]
    for square in found:
        for one in square["within"]:
            known = keys_contrast(result, one["model"], square["top"])
            assert (one["p"], one["adjusted_p"]) == (known["p"], known["adjusted_p"])
            sign = -1 if one["model"] == "tiny-llama" else 1  # the family has recomputed - cached of a causal model
            assert one["points"]["value"] == sign * known["value"]
            assert sorted((one["points"]["low"], one["points"]["high"])) == sorted(
                (sign * known["low"], sign * known["high"])
            )
            assert one["points"]["low"] <= one["points"]["high"]
    assert found[0]["within"][1]["points"]["value"] == pytest.approx(-8 / 20)  # tiny-llama, cached - recomputed


def test_the_level_of_a_model_is_shared_with_all_contrasts_of_its_family(tmp_path: Path) -> None:
    """Nine contrasts, six of them less unmasked. Problems lost, all one way: 18, 12, 12, 8, 8, 7, 6, 5 and none."""
    _, (first, _, last) = judged_squares(write_rows(tmp_path, rows()))
    llama = {square["top"]: square["within"][1] for square in (first, last)}
    assert llama[5]["p"] == pytest.approx(2 / 2**12)
    assert llama[5]["adjusted_p"] == pytest.approx(8 * 2 / 2**12)  # one of the two with 12, the second of nine
    assert llama[1]["p"] == pytest.approx(2 / 2**8)
    assert llama[1]["adjusted_p"] == pytest.approx(6 * 2 / 2**8)  # the fourth


def test_two_models_share_their_level_over_all_numbers_of_keys(tmp_path: Path) -> None:
    _, found = judged_squares(write_rows(tmp_path, rows()))
    across = {square["top"]: square["across"][0] for square in found}
    ps = {top: one["p"] for top, one in across.items()}
    # Problems in which cached - recomputed of tiny-llama is lower than that of tiny-llada: 8 at 1 sink (one of them by
    # 2), 7 at 3, and 11 at 5, where both lose problem 11. None the other way.
    assert ps == pytest.approx({1: 2 / 2**8, 3: 2 / 2**7, 5: 2 / 2**11})
    expected = {1: 2 * 2 / 2**8, 3: 2 / 2**7, 5: 3 * 2 / 2**11}
    assert {top: one["adjusted_p"] for top, one in across.items()} == pytest.approx(expected)


def test_other_pairs_do_not_count(tmp_path: Path) -> None:
    """Another causal model is another pair: the level of the first stays."""
    _, alone = judged_squares(write_rows(tmp_path / "alone", rows()))
    _, both = judged_squares(write_rows(tmp_path / "both", rows(RIGHT | {"other-llama": RIGHT["tiny-llama"]})))
    for one, other in zip(alone, both, strict=True):
        assert len(other["across"]) == 2
        assert one["across"][0] in other["across"]
        assert all(within in other["within"] for within in one["within"])


def test_the_page_tells_the_number_of_the_family(tmp_path: Path) -> None:
    result, found = judged_squares(write_rows(tmp_path, rows()))
    lines = square_section(result | {"squares": found}).splitlines()
    for top in (1, 3, 5):
        known = keys_contrast(result, "tiny-llada", top)
        (line,) = (
            one for one in lines if one.startswith(f"| tiny-llada: cached - recomputed | word_problems | {top} |")
        )
        assert f"| {points(known)} |" in line
        assert f"| {chance(known['adjusted_p'])} |" in line


def test_what_the_family_does_not_have_is_not_adjusted(tmp_path: Path) -> None:
    families = read_families(write_rows(tmp_path, rows()))
    within = [one for square in squares(families) for one in square["within"]]
    assert {one["adjusted_p"] for one in within} == {None}
    assert all(one["p"] is not None for one in within)


def test_a_baseline_below_the_floor_has_no_numbers(tmp_path: Path) -> None:
    low = {"tiny-llama": (11, RIGHT["tiny-llama"][1])}
    _, found = judged_squares(write_rows(tmp_path, rows(low)))
    for square in found:
        (one,) = square["within"]
        assert "both must be at least 0.6" in one["refused"]
        assert (one["points"], one["p"], one["adjusted_p"]) == (None, None, None)
        assert square["across"] == []
