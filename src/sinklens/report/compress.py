"""A compression result for people: figures and a table, from the document of results alone.

    figure_compression  scores over the share of entries dropped
    figure_skips        the same by skipped layers
    figure_needle       scores by length and depth
    figure_language     perplexity and accuracy against length
    table.md

Needs neither torch nor the rows. Only what the result has is drawn.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from sinklens.report.columns import columns
from sinklens.report.compress_figures import draw_compression, draw_language, draw_skips
from sinklens.report.compress_needle import draw_needle
from sinklens.report.style import save_all

Result = Mapping[str, Any]
FIGURES = {
    "figure_compression": draw_compression,
    "figure_skips": draw_skips,
    "figure_needle": draw_needle,
    "figure_language": draw_language,
}
_COLUMNS = ("order", "keep", "whole layers", "cache", "value", "vs whole cache", "vs random", "n")
LEGEND = (
    "order: which entries are kept; low, high: those whose keys have a low or high norm.",
    "keep: how many, in layers that are cut; cache: bytes that are left, whole layers included.",
)
NOTE = (
    "95 % intervals: Wilson's for shares of right answers, else the bootstrap over problems; differences (vs) are "
    f"paired by problem. {' '.join(LEGEND)}"
)


def draw(result: Result, folder: Path) -> list[Path]:
    """Write the figures (PNG and SVG) and table.md into a folder; the paths that were written."""
    return save_all(FIGURES, result, folder, table=table_markdown(result))


def table_markdown(result: Result) -> str:
    """All cells, a table for each task and length."""
    lines = [f"# {result['model'] or 'Compressed caches'}"]
    for name, rows in _tables(result):
        lines += ["", f"## {name}", "", f"| {' | '.join(_COLUMNS)} |", "| --- " * len(_COLUMNS) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", NOTE, ""])


def table_text(result: Result, *, width: int | None = None) -> str:
    """The same for a terminal of so many columns."""
    lines: list[str] = []
    for name, rows in _tables(result):
        lines += ["", name, *columns(_COLUMNS, rows, width=width)]
    lines += ["", *(line for text in LEGEND for line in wrap(text, width or 120))]
    return "\n".join(lines).lstrip("\n")


def _tables(result: Result) -> Iterator[tuple[str, list[list[str]]]]:
    paper_grid = (result["settings"] or {}).get("paper_grid")
    for family in result["retrieval"]:
        task = f"{family['task']} {family['set']}" if family["set"] else family["task"]
        unit = "characters of filler" if paper_grid and family["task"] == "passkey" else "tokens"
        yield f"{task}, {family['length']} {unit}", [_row(cell, "value", _share) for cell in family["cells"]]
    for one in result["language"]:
        stride = "" if one["stride"] == 1 else f", cut every {one['stride']} tokens"
        yield f"language modelling, {one['length']} tokens{stride}: nats a token", _language(one["cells"])


def _language(cells: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    return [_row({**cell, "cache_share": None, "problems": cell["chunks"]}, "nll", _nats) for cell in cells]


def _row(cell: Mapping[str, Any], level: str, show: Any) -> list[str]:
    plain = cell["order"] == "none"
    draws = f" x {cell['draws']}" if cell["draws"] > 1 else ""
    budget = cell["keep"] + ("" if cell["schedule"] == "once" else f" ({cell['schedule']})")
    cache = "" if cell["cache_share"] is None else f"{100 * cell['cache_share']:.0f} %"
    return [
        cell["order"] + (", strict" if cell["strict"] else ""),
        "all" if plain else budget,
        "all" if plain else cell["skip"] or "none",
        cache,
        show(cell[level], sign=""),
        "" if cell["to_none"] is None else show(cell["to_none"], sign="+"),
        "" if cell["to_random"] is None else show(cell["to_random"], sign="+"),
        f"{cell['problems']}{draws}",
    ]


def _share(interval: Mapping[str, Any], *, sign: str) -> str:
    return _interval(interval, sign=sign, digits=2)


def _nats(interval: Mapping[str, Any], *, sign: str) -> str:
    return _interval(interval, sign=sign, digits=3)


def _interval(interval: Mapping[str, Any], *, sign: str, digits: int) -> str:
    def number(value: float) -> str:
        return f"{value:{sign}.{digits}f}"

    if interval["low"] is None:
        return number(interval["value"])
    return f"{number(interval['value'])} [{number(interval['low'])}, {number(interval['high'])}]"
