"""Table 2: which tokens lie under sinks most often, as CSV and LaTeX."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sinklens.report.numbers import latex, write_csv, write_latex
from sinklens.report.scene import Drawn, Focus, Model, Sheet
from sinklens.sinks.arrays import Canvases, LayerArrays
from sinklens.sinks.detect import MIN_VIEWERS, detect_sinks
from sinklens.sinks.statistics import ShareRow, TokenCounts, count_tokens, table_two
from sinklens.sinks.tokens import display

TOP = 5
_COLUMNS = (
    ("l", "Model"),
    ("l", "Token"),
    ("r", "Sinks"),
    ("r", "Share"),
    ("l", r"95\,\% interval"),
    ("r", "Lift"),
)


class TokensUnderSinks:
    """How often each token lies under a sink, sample by sample."""

    groups = False

    def __init__(self, _model: Model, focus: Focus) -> None:
        self._epsilon = focus.epsilon
        self._counts: dict[int, TokenCounts] = {}
        self._canvases: dict[int, Canvases] = {}

    def wants(self, _sample: int, _layer: int) -> bool:
        return True

    def add(self, layer: LayerArrays, canvases: Canvases) -> None:
        if (layer.viewers >= MIN_VIEWERS).any():
            sinks = detect_sinks(layer.received, layer.expected, self._epsilon, viewers=layer.viewers)
        else:
            sinks = np.zeros(layer.received.shape, bool)  # so short a run has no sinks; the others may have
        counts = count_tokens(layer, canvases, sinks)
        before = self._counts.get(canvases.sample)
        self._counts[canvases.sample] = counts if before is None else before + counts
        self._canvases[canvases.sample] = canvases

    def rows(self) -> list[ShareRow]:
        return table_two(list(self._counts.values()), list(self._canvases.values()), top=TOP)


def draw(sheet: Sheet, gathered: Sequence[tuple[Model, TokensUnderSinks]]) -> Drawn:
    """Every (sample, step, layer, head) counts, as in the paper; intervals resample whole samples."""
    tables = [(model, counted.rows()) for model, counted in gathered]
    filled = [(model, rows) for model, rows in tables if rows]
    notes = [f"{model.label} has no sink at epsilon {sheet.focus.epsilon:g}" for model, rows in tables if not rows]
    if not filled:
        return sheet.skip(*notes)
    notes += [f"{model.label}: one sample, hence no interval" for model, rows in filled if rows[0].low is None]
    comment = f"share of sinks that lie on the token, epsilon {sheet.focus.epsilon:g} fair shares; lift 1: by chance"
    files = [
        write_csv(sheet.to / f"{sheet.name}.csv", _records(filled, sheet.focus.epsilon)),
        write_latex(
            sheet.to / f"{sheet.name}.tex",
            columns=_COLUMNS,
            groups=[_lines(model, rows) for model, rows in filled],
            comment=comment,
        ),
    ]
    return sheet.drawn(files, notes=notes)


def _records(filled: Sequence[tuple[Model, list[ShareRow]]], epsilon: float) -> Iterator[dict[str, Any]]:
    for model, rows in filled:
        for row in rows:
            yield {
                "model": model.label,
                "epsilon_fair_shares": epsilon,
                "token_id": row.token,
                "token": display(row.name),
                "token_class": row.token_class,
                "sinks": row.sinks,
                "share_of_sinks": row.share,
                "low": row.low,
                "high": row.high,
                "share_of_all_tokens": row.base,
                "lift": row.lift,
                "samples": row.n,
            }


def _lines(model: Model, rows: Sequence[ShareRow]) -> list[list[str]]:
    """The name of the model stands in the first line of its rows."""
    return [
        [
            latex(model.label) if first else "",
            rf"\texttt{{{latex(display(row.name))}}}",
            str(row.sinks),
            _number(row.share, 3),
            "" if row.low is None else f"{_number(row.low, 3)} to {_number(row.high, 3)}",
            _number(row.lift, 1),
        ]
        for first, row in ((row is rows[0], row) for row in rows)
    ]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
