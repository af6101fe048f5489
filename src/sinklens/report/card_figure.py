"""The one figure of a card, four panels: main sink by layer, tokens under sinks, kinds of tracks, cost of removal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sinklens.report.style import COLOURS, MARKERS, PAGE, line_style, new_figure, save, styled

HEIGHT = 4.3  # inches
ROOM = 0.35  # above the points, for the legend
BARS = 6  # classes at most
KINDS = ("static", "flicker", "split", "moving right", "moving left", "jumping", "frontier")
TREATED = (("sinks", "mask", "sinks"), ("random", "mask", "random keys"))
VALUES = (("zero", "sinks, value zero"), ("mean", "sinks, value mean"))
Entry = Mapping[str, Any]


def draw_card(card: Entry, to: Path, *, name: str = "card") -> list[Path]:
    """PNG and SVG."""
    with styled():
        figure = new_figure(width=PAGE, height=HEIGHT)
        (layers, classes), (kinds, cost) = figure.subplots(2, 2)
        _draw_layers(layers, card["where"])
        _draw_classes(classes, card["where"])
        _draw_kinds(kinds, card["how"])
        _draw_cost(cost, card["cost"])
        return save(figure, to, name=name)


def _draw_layers(axis: Any, where: Entry) -> None:
    from matplotlib.ticker import MaxNLocator

    known = [one for one in where["layers"] if one["mass"]["value"] is not None]
    places = [one["layer"] for one in known]
    values = [100 * one["mass"]["value"] for one in known]
    axis.errorbar(places, values, yerr=_reach([one["mass"] for one in known]), marker="o", **_line(0))
    axis.set_ylim(bottom=0)
    axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axis.set_title("a  Main sink of a head: share of attention", loc="left")
    axis.set_xlabel("layer")
    axis.set_ylabel("attention (%)")


def _draw_classes(axis: Any, where: Entry) -> None:
    rows = sorted((row for row in where["classes"] if row["share"] is not None), key=lambda row: -row["share"])[:BARS]
    _bars(axis, [row["name"] for row in rows], [_as_interval(row) for row in rows])
    _beside(axis, [row["base"] for row in rows], label="share of sinks (%); ◇ of all tokens")
    axis.set_title("b  Tokens under sinks, by class", loc="left")


def _draw_kinds(axis: Any, how: Entry) -> None:
    rows = [how["shares"][name] for name in KINDS]
    _bars(axis, KINDS, rows)
    _beside(axis, [row["null"] for row in rows], label="share of tracks (%); ◇ under the null")
    axis.set_title("c  What sinks do over steps", loc="left")


def _draw_cost(axis: Any, cost: Entry) -> None:
    unmasked = next(one for one in cost["cells"] if one["choose"] == "none")
    places = {top: index for index, top in enumerate([None, *cost["tops"]])}
    share = cost["measure"] == "accuracy"
    scale = 100.0 if share else 1.0
    for number, (choose, act, label) in enumerate(TREATED):
        cells = [unmasked, *_cells(cost, choose, act)]
        if len(cells) > 1 or number == 0:
            at = [places[one["top"]] + 0.05 * (2 * number - 1) for one in cells]
            _points(axis, at, cells, scale=scale, label=label, number=number)
    for number, (act, label) in enumerate(VALUES, len(TREATED)):
        cells = _cells(cost, "sinks", act)
        if cells:
            at = [places[one["top"]] + 0.15 * (number - 1) for one in cells]
            _points(axis, at, cells, scale=scale, label=label, number=number, line=False)
    axis.set_xticks(list(places.values()), ["none", *map(str, cost["tops"])])
    if share:
        axis.set_yticks(range(0, 101, 20))
        axis.set_ylim(-6, 100)
    low, high = axis.get_ylim()
    axis.set_ylim(low, high + ROOM * (high - low))
    axis.set_title("d  With keys removed from every head", loc="left")
    axis.set_xlabel("keys removed")
    axis.set_ylabel(
        {"accuracy": "accuracy (%)", "nll": "nll (nats a token)", "elbo": "minus elbo (nats a token)"}[cost["measure"]]
    )
    axis.legend(loc="upper right", ncols=2, handlelength=2.2, columnspacing=1.2)


def _cells(cost: Entry, choose: str, act: str) -> list[Entry]:
    return [one for one in cost["cells"] if (one["choose"], one["act"]) == (choose, act)]


def _points(
    axis: Any, at: Sequence[float], cells: Sequence[Entry], *, scale: float, label: str, number: int, line: bool = True
) -> None:
    look = _line(number) if line else {**_line(number), "linestyle": "none"}
    values = [scale * one["value"]["value"] for one in cells]
    reach = _reach([one["value"] for one in cells], scale=scale)
    axis.errorbar(at, values, yerr=reach, marker=MARKERS[number], label=label, **look)


def _bars(axis: Any, names: Sequence[str], intervals: Sequence[Entry]) -> None:
    """Horizontal, the first on top."""
    places = range(len(names))
    axis.barh(places, [100 * (one["value"] or 0) for one in intervals], height=0.6, color=COLOURS[5])
    known = [(place, one) for place, one in zip(places, intervals, strict=True) if one["value"] is not None]
    axis.errorbar(
        [100 * one["value"] for _, one in known], [place for place, _ in known],
        xerr=_reach([one for _, one in known]), fmt="none", ecolor="black", elinewidth=0.8, capsize=1.5,
    )  # fmt: skip
    axis.set_yticks(places, names)
    axis.invert_yaxis()


def _beside(axis: Any, values: Sequence[float | None], *, label: str) -> None:
    """What chance would give, as a mark on each bar; the axis reaches as far as the marks and bars do."""
    known = [(place, 100 * value) for place, value in enumerate(values) if value is not None]
    if known:
        axis.plot(
            [value for _, value in known], [place for place, _ in known], marker="D", markersize=4, linestyle="none",
            color=COLOURS[1], markerfacecolor="white", zorder=4, clip_on=False,
        )  # fmt: skip
    axis.set_xlim(
        0, max(1.0, axis.get_xlim()[1])
    )  # only now: a limit that is set is not widened by what is drawn later
    axis.set_xlabel(label)


def _reach(intervals: Sequence[Entry], *, scale: float = 100.0) -> list[list[float]]:
    """How far the ends are from the value: below and above. None: no interval, no bar."""
    ends = [
        (0.0, 0.0)
        if one["low"] is None
        else (max(0.0, one["value"] - one["low"]), max(0.0, one["high"] - one["value"]))
        for one in intervals
    ]
    return [[scale * below for below, _ in ends], [scale * above for _, above in ends]]


def _as_interval(row: Entry) -> dict[str, Any]:
    return {"value": row["share"], "low": row["low"], "high": row["high"]}


def _line(number: int) -> dict[str, Any]:
    return {**line_style(number), "markersize": 4, "elinewidth": 0.8, "capsize": 1.5}
