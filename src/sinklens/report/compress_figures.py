"""Figures of a compression result: scores against compression, by skipped layers, and losses on text against length."""

from collections.abc import Mapping, Sequence
from typing import Any

from sinklens.cache.settings import ORDERS
from sinklens.report.masking_marks import ACROSS, handle, legend, mark_point, panel_grid, sign, spread
from sinklens.report.style import escape_missing, line_style

Result = Mapping[str, Any]
Entry = Mapping[str, Any]
UNTOUCHED = {"colour": "#000000", "marker": "D"}
EARLY = 30  # tokens of a chunk whose mean so far is mostly chance; curves begin behind them
WHAT = {"passkey": "answered right", "needle": "words found", "longbench": "score"}


def variant(entry: Entry) -> tuple[Any, ...]:
    """What a line of a figure has in common, apart from its order and budget."""
    return tuple(entry[name] for name in ("skip", "schedule", "strict", "first", "last"))


def variants(entries: Sequence[Entry]) -> list[tuple[Any, ...]]:
    """Of all compressed cells; the one that most of them have first."""
    found = [variant(entry) for entry in entries if entry["order"] != "none"]
    return sorted(dict.fromkeys(found), key=found.count, reverse=True)


def orders_of(entries: Sequence[Entry]) -> list[str]:
    there = {entry["order"] for entry in entries}
    return [order for order in ORDERS if order in there]


def draw_compression(result: Result) -> Any | None:
    """Score over the share of entries dropped, a panel for each task and length, a line for each order."""
    families = [one for one in result["retrieval"] if orders_of(one["cells"])]
    if not families:
        return None
    main = variants([cell for one in families for cell in one["cells"]])[0]
    orders = orders_of([cell for one in families for cell in one["cells"]])
    figure, axes = panel_grid(1, len(families), height=1.75)
    for axis, family in zip(axes, families, strict=True):
        axis.set_title(title(family))
        for number, order in enumerate(orders):
            shown = [cell for cell in family["cells"] if cell["order"] == order and variant(cell) == main]
            _line(axis, shown, number, len(orders))
        _finish(axis, family["cells"])
    _label(axes, families)
    words = {"low": "low norms kept", "high": "high norms kept"}
    legend(figure, [*_handles([words.get(order, order) for order in orders]), _untouched()])
    return figure


def draw_skips(result: Result) -> Any | None:
    """The same with a line for each set of skipped layers, for one order, where there are several; else None."""
    entries = [cell for one in result["retrieval"] for cell in one["cells"]]
    skips = [one[0] for one in variants(entries)]
    if len(set(skips)) < 2:
        return None
    order, rest = orders_of(entries)[0], variants(entries)[0][1:]
    names = list(dict.fromkeys(sorted(skips, key=lambda skip: (len(skip), skip))))
    families = [
        one for one in result["retrieval"] if len({cell["skip"] for cell in one["cells"] if cell["order"] == order}) > 1
    ]
    if not families:
        return None
    figure, axes = panel_grid(1, len(families), height=1.75)
    for axis, family in zip(axes, families, strict=True):
        axis.set_title(f"{title(family)}, order {order}")
        for number, skip in enumerate(names):
            shown = [cell for cell in family["cells"] if cell["order"] == order and variant(cell) == (skip, *rest)]
            _line(axis, shown, number, len(names))
        _finish(axis, family["cells"])
    _label(axes, families)
    words = [f"layer{'s' if ',' in skip else ''} {skip} whole" if skip else "no layer whole" for skip in names]
    legend(figure, [*_handles(words), _untouched()])
    return figure


def draw_language(result: Result) -> Any | None:
    """The log of the cumulative perplexity, and hits so far, against length: a column for each budget."""
    places = [(one, kept) for one in result["language"] for kept in _budgets(one)]
    if not places:
        return None
    orders = orders_of([cell for one, _ in places for cell in one["cells"]])
    main = variants([cell for one, _ in places for cell in one["cells"]])[0]
    places = places[:ACROSS]
    figure, axes = panel_grid(2, len(places), height=1.6)
    for row, (name, words) in enumerate((("log_perplexity", "log perplexity"), ("hits", "tokens foreseen"))):
        for place, (one, kept) in enumerate(places):
            axis = axes[row * len(places) + place]
            for cell in one["cells"]:
                if cell["order"] == "none":
                    axis.plot(*_curve(cell, name), color="#000000", linewidth=0.9)
                elif cell["kept"] == kept and variant(cell) == main:
                    axis.plot(*_curve(cell, name), **line_style(orders.index(cell["order"])))
            axis.axvline(kept, color="#888888", linewidth=0.6, linestyle=(0, (2, 2)))
            if row == 0:
                axis.set_title(f"at most {kept} of {one['length']} entries" + _every(one["stride"]))
            else:
                axis.set_xlabel("tokens read")
            if place == 0:
                axis.set_ylabel(words)
    plain = handle("none", color="#000000", linestyle="-")
    legend(figure, [plain, *(handle(order, **line_style(number)) for number, order in enumerate(orders))])
    return figure


def _curve(cell: Entry, name: str) -> tuple[list[int], list[float]]:
    early = EARLY if cell["tokens"][-1] > 2 * EARLY else 0
    shown = [(tokens, value) for tokens, value in zip(cell["tokens"], cell[name], strict=True) if tokens > early]
    return [tokens for tokens, _ in shown], [value for _, value in shown]


def title(family: Entry) -> str:
    name = f"{family['task']} {family['set']}" if family["set"] else family["task"]
    tokens = family["prompt_tokens"]
    span = f"{tokens['least']}" if tokens["least"] == tokens["most"] else f"{tokens['least']} to {tokens['most']}"
    return f"{escape_missing(name)}\n{span} tokens"


def _every(stride: int) -> str:
    return "" if stride == 1 else f", cut every {stride}"


def _budgets(entry: Entry) -> list[int]:
    return sorted({cell["kept"] for cell in entry["cells"] if cell["order"] != "none"}, reverse=True)


def _line(axis: Any, cells: Sequence[Entry], number: int, of: int) -> None:
    """One line, by how much is dropped, with its intervals a little beside each other."""
    shown = sorted(cells, key=lambda cell: -cell["kept_share"])
    style = line_style(number)
    where = [100 * (1 - cell["kept_share"]) + 12 * spread(number, of) for cell in shown]
    axis.plot(where, [cell["value"]["value"] for cell in shown], **style)
    for x, cell in zip(where, shown, strict=True):
        mark_point(axis, x, cell["value"], colour=style["color"], marker=sign(number), hollow=False)


def _finish(axis: Any, cells: Sequence[Entry]) -> None:
    for cell in cells:
        if cell["order"] == "none":
            axis.axhline(cell["value"]["value"], color="#BBBBBB", linewidth=0.6, zorder=0)
            mark_point(axis, 0.0, cell["value"], hollow=False, **UNTOUCHED)
    axis.set_xlim(-5, 103)
    axis.set_ylim(-0.02, 1.02)
    axis.set_xticks([0, 25, 50, 75, 100])


def _label(axes: Sequence[Any], families: Sequence[Entry]) -> None:
    tasks = list(dict.fromkeys(family["task"] for family in families))
    for place, axis in enumerate(axes):
        if place % min(len(axes), ACROSS) == 0:
            axis.set_ylabel(WHAT[tasks[0]] if len(tasks) == 1 else "score")
        axis.set_xlabel("dropped in cut layers (%)")


def _handles(names: Sequence[str]) -> list[Any]:
    return [handle(name, marker=sign(number), **line_style(number)) for number, name in enumerate(names)]


def _untouched() -> Any:
    return handle("whole cache", color=UNTOUCHED["colour"], marker=UNTOUCHED["marker"], linestyle="none")
