"""The numbers behind the figures, against plain loops in float64 over the same arrays."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from report.conftest import read_csv
from report.three_models import CLASSES, TEXTS, MappedTrace
from sinklens.report.figures import draw_figures
from sinklens.report.scene import Drawn
from sinklens.sinks.arrays import LayerArrays, Received

Rows = Callable[[str], list[dict[str, str]]]


def share(reading: Received, step: int, head: int) -> list[float]:
    """Fair shares of one row; NaN where there is no token."""
    received, expected = reading.received[step, head].tolist(), reading.expected[step, 0].tolist()
    return [r / e if e > 0 else math.nan for r, e in zip(received, expected, strict=True)]


def excess(shares: list[float]) -> list[float]:
    known = [one for one in shares if not math.isnan(one)]
    return [one - (sum(known) - one) / (len(known) - 1) for one in shares]


def row_places(trace: MappedTrace) -> Iterator[tuple[int, LayerArrays, int, int]]:
    for (sample, _), layer in sorted(trace.contents.items()):
        for step in range(len(layer.steps)):
            for head in range(len(layer.heads)):
                yield sample, layer, step, head


def scored(layer: LayerArrays, step: int, shares: list[float]) -> dict[int, float]:
    """By position, the tokens that 8 queries or more may see."""
    return {j: one for j, one in enumerate(shares) if not math.isnan(one) and layer.viewers[step, 0, j] >= 8}


def of_model(rows: list[dict[str, str]], name: str) -> list[dict[str, str]]:
    return [row for row in rows if row["model"] == name]


def test_figure_1_holds_every_token_that_is_there(rows: Rows, traces: list[MappedTrace]) -> None:
    for trace in traces:
        mine = of_model(rows("1"), trace.name)
        layer = trace.contents[0, int(mine[0]["layer"])]
        head = int(mine[0]["head"])
        canvases = trace.texts[0]
        assert len(mine) == int((canvases.ids >= 0).sum())
        for row in mine[::7]:
            step, position = int(row["step"]), int(row["position"])
            assert float(row["received_fair_shares"]) == pytest.approx(share(layer, step, head)[position], rel=1e-6)
            assert int(row["token_id"]) == canvases.ids[step, position]
            assert row["masked"] == str(bool(canvases.masked[step, position])).lower()
            assert float(row["queries_that_see_it"]) == layer.viewers[step, 0, position]


def test_figures_3_and_9_count_every_score(rows: Rows, traces: list[MappedTrace]) -> None:
    assert rows("3") == rows("9")
    for trace in traces:
        counts: Counter[int] = Counter()
        for _, layer, step, head in row_places(trace):
            for one in scored(layer, step, [float(x) for x in layer.fair_share[step, head]]).values():
                counts[min(100, int(one * 2))] += 1  # bins of half a fair share
        mine = of_model(rows("3"), trace.name)
        assert {
            int(float(row["from_fair_shares"]) * 2): int(row["count"]) for row in mine if row["count"] != "0"
        } == counts
        assert {row["samples"] for row in mine} == {"2"}


def test_figure_5_averages_the_greatest_score(rows: Rows, traces: list[MappedTrace]) -> None:
    for trace in traces:
        best: dict[tuple[int, int], list[float]] = {}
        mass: dict[tuple[int, int], list[float]] = {}
        for _, layer, step, head in row_places(trace):
            scores = scored(layer, step, share(layer, step, head))
            position = max(scores, key=scores.__getitem__)
            best.setdefault((layer.layer, head), []).append(scores[position])
            took = layer.received[step, head, position] / layer.viewers[step, 0, position]
            mass.setdefault((layer.layer, head), []).append(float(took))
        mine = of_model(rows("5"), trace.name)
        assert len(mine) == 12
        for row in mine:
            place = int(row["layer"]), int(row["head"])
            assert float(row["main_sink_fair_shares"]) == pytest.approx(np.mean(best[place]), rel=1e-5)
            assert float(row["main_sink_mass"]) == pytest.approx(np.mean(mass[place]), rel=1e-5)


def split_contrast(layer: LayerArrays, step: int, head: int) -> tuple[float, int, int]:
    """By how much the two groups differ, and where each looks."""
    readings = [layer.groups[name] for name in ("unmasked", "masked")]
    above = []
    for one in readings:
        if one.viewers[step].max() < 8:
            return 0.0, -1, -1
        above.append(excess(share(one, step, head)))
    places = [int(np.argmax(one)) for one in above]
    if places[0] == places[1] or any(one[at] <= 3 for one, at in zip(above, places, strict=True)):
        return 0.0, -1, -1
    own = [above[0][places[0]] - max(above[1][places[0]], 0), above[1][places[1]] - max(above[0][places[1]], 0)]
    return min(own), places[0], places[1]


def test_figure_6a_shows_where_the_groups_differ_most(rows: Rows, traces: list[MappedTrace]) -> None:
    assert {row["model"] for row in rows("6a")} == {"llada", "dream"}
    for trace in traces[:2]:
        found = [
            (split_contrast(layer, step, head)[0], layer.layer, head, step)
            for sample, layer, step, head in row_places(trace)
            if sample == 0
        ]
        _, number, head, step = max(found)
        mine = of_model(rows("6a"), trace.name)
        assert {(row["layer"], row["head"], row["step"]) for row in mine} == {(str(number), str(head), str(step))}
        groups = trace.contents[0, number].groups
        for name in ("masked", "unmasked"):
            values = [float(row[f"received_from_{name}_fair_shares"]) for row in mine]
            assert values == pytest.approx(share(groups[name], step, head), rel=1e-6)


def test_figure_6b_finds_the_planted_flicker(rows: Rows, traces: list[MappedTrace]) -> None:
    for trace in traces[:2]:
        (row,) = (row for row in of_model(rows("6b"), trace.name) if row["flicker"] == "true")
        layer = int(row["layer"])
        assert (int(row["head"]) + layer) % 4 == 3  # the heads that flicker, three_models.plant
        assert (int(row["step"]), int(row["position"])) == (12 + layer, 14)
        mine = [one for one in of_model(rows("6b"), trace.name) if one["position"] == "14"]
        assert [int(one["step"]) for one in mine] == [11 + layer, 12 + layer, 13 + layer]
        before, now, after = (float(one["received_fair_shares"]) for one in mine)
        assert now > 3 + max(before, after)


def test_figure_6b_shows_the_flicker_that_stands_out_most(rows: Rows, traces: list[MappedTrace]) -> None:
    (row,) = (row for row in of_model(rows("6b"), "llada") if row["flicker"] == "true")
    planted = []
    for number in range(3):
        shares = [share(traces[0].contents[0, number], step, (3 - number) % 4)[14] for step in range(24)]
        planted.append((shares[12 + number] - max(shares[11 + number], shares[13 + number]), number))
    assert max(planted)[1] == int(row["layer"])


def test_figure_7_follows_the_greatest_score(rows: Rows, traces: list[MappedTrace]) -> None:
    for trace in traces:
        mine = of_model(rows("7"), trace.name)
        assert [int(row["step"]) for row in mine] == list(range(24))
        layer, head = trace.contents[0, int(mine[0]["layer"])], int(mine[0]["head"])
        for step, row in enumerate(mine):
            shares = share(layer, step, head)
            scores = scored(layer, step, shares)
            position = max(scores, key=scores.__getitem__)
            assert int(row["position"]) == position
            assert float(row["received_fair_shares"]) == pytest.approx(shares[position], rel=1e-6)
            assert row["is_sink"] == str(excess(shares)[position] > 3).lower()
            assert row["masked"] == str(bool(trace.texts[0].masked[step, position])).lower()


def test_figure_10_counts_tokens_below_every_epsilon(rows: Rows, traces: list[MappedTrace]) -> None:
    for trace in traces:
        above = []
        for _, layer, step, head in row_places(trace):
            shares = share(layer, step, head)
            few = [float(layer.viewers[step, 0, j]) < 8 for j in range(len(shares))]
            over = [
                (-math.inf if less else e) for e, less in zip(excess(shares), few, strict=True) if not math.isnan(e)
            ]
            above += over
        mine = of_model(rows("10"), trace.name)
        assert [float(row["epsilon_fair_shares"]) for row in mine] == [i / 4 for i in range(41)]
        for row in mine:
            expected = sum(one <= float(row["epsilon_fair_shares"]) for one in above) / len(above)
            assert float(row["share_not_sinks"]) == pytest.approx(expected, abs=3e-5)  # float32 at the very threshold
            assert float(row["low"]) <= float(row["share_not_sinks"]) <= float(row["high"])


def test_table_2_counts_every_sink(rows: Rows, traces: list[MappedTrace]) -> None:
    for trace in traces:
        sinks: Counter[int] = Counter()
        cells: Counter[int] = Counter()
        for sample, layer, step, head in row_places(trace):
            for j, one in enumerate(excess(share(layer, step, head))):
                if not math.isnan(one):
                    token = int(trace.texts[sample].ids[step, j])
                    cells[token] += 1
                    sinks[token] += one > 3 and layer.viewers[step, 0, j] >= 8
        mine = of_model(rows("table2"), trace.name)
        order = sorted((token for token in sinks if sinks[token]), key=lambda token: (-sinks[token], token))[:5]
        assert [int(row["token_id"]) for row in mine] == order
        for row in mine:
            token = int(row["token_id"])
            portion = sinks[token] / sinks.total()
            assert int(row["sinks"]) == sinks[token]
            assert float(row["share_of_sinks"]) == pytest.approx(portion)
            assert float(row["lift"]) == pytest.approx(portion / (cells[token] / cells.total()))
            assert row["token_class"] == CLASSES.get(token, "unknown")
            assert row["token"] == {1: r"\n", 3: "␣the", 8: "␣", 12: r"\\frac{a}{b}"}.get(token, TEXTS[token])


def test_table_2_in_latex(drawn: dict[str, Drawn], rows: Rows) -> None:
    text = drawn["table2"].files[1].read_text("utf-8")
    lines = [line for line in text.splitlines() if line.endswith(r"\\")][1:]
    assert len(lines) == len(rows("table2"))
    for line, row in zip(lines, rows("table2"), strict=True):
        cells = [one.strip() for one in line.removesuffix(r"\\").replace(r"\&", "AND").split("&")]
        assert len(cells) == 6
        assert cells[2] == row["sinks"]
        assert cells[3] == f"{float(row['share_of_sinks']):.3f}"
        assert cells[4] == f"{float(row['low']):.3f} to {float(row['high']):.3f}"
        assert cells[5] == f"{float(row['lift']):.1f}"
    assert r"\texttt{\textbackslash{}n}" in text
    assert text.count(r"\midrule") == 3
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1


def test_figures_4_and_8_show_the_stored_maps(rows: Rows, traces: list[MappedTrace]) -> None:
    shown = {"4": [(traces[0], 0, 0, [7, 8, 9])], "8": [(traces[1], 2, 0, [4, 5]), (traces[2], 1, 1, [20])]}
    for id, expected in shown.items():
        for trace, layer, head, steps in expected:
            mine = of_model(rows(id), trace.name)
            assert {(row["layer"], row["head"]) for row in mine} == {(str(layer), str(head))}
            assert sorted({int(row["step"]) for row in mine}) == steps  # of 6 to 9, the sink moves from 8 to 9
            for step, number, which, stored in trace.stored[0]:
                values = [float(row["attention"]) for row in mine if int(row["step"]) == step]
                if (number, which) == (layer, head) and values:
                    assert values == pytest.approx(stored.ravel().tolist(), rel=1e-6)


def test_what_is_asked_for_is_shown(traces: list[MappedTrace], tmp_path: Path) -> None:
    asked: dict[str, Any] = {"layer": 1, "head": 1, "step": 6, "sample": 1}
    draw_figures(traces[:1], tmp_path, only=["1", "6a"], **asked)
    for name in ("figure_1.csv", "figure_6a.csv"):
        mine = read_csv(tmp_path / name)
        assert {(row["sample"], row["layer"], row["head"]) for row in mine} == {("1", "1", "1")}
    assert {row["step"] for row in mine} == {"6"}
    contrast, *_ = split_contrast(traces[0].contents[1, 1], 6, 1)
    assert contrast > 0


def test_a_single_sample_has_no_interval(traces: list[MappedTrace], tmp_path: Path) -> None:
    trace = traces[0]
    single = MappedTrace(
        contents={place: layer for place, layer in trace.contents.items() if place[0] == 0}, texts=trace.texts
    )
    table, *_ = (one for one in draw_figures([single], tmp_path, only=["10", "table2"]) if one.id == "table2")
    assert table.note == "arrays: one sample, hence no interval"
    for name in ("figure_10.csv", "table_2.csv"):
        assert {row["low"] + row["high"] for row in read_csv(tmp_path / name)} == {""}
