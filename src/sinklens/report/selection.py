"""A selection result for people: figures and tables, from the document of results alone.

    figure_accuracy     against budget, patches kept, MACs
    figure_choices      the same for other choices on the gates' backbone, where models were trained with theirs
    figure_channel      against SNR and lost tokens
    figure_kept         patches kept against the budget, and how much images differ
    figure_foreground   how much of the object is kept
    figure_speed        images a second
    table.md

Needs neither torch nor the rows. Only what the result has is drawn.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sinklens.report.card_numbers import plural
from sinklens.report.columns import columns
from sinklens.report.selection_figures import (
    draw_accuracy,
    draw_channel,
    draw_choices,
    draw_foreground,
    draw_kept,
    draw_speed,
    named,
)
from sinklens.report.style import save_all

Result = Mapping[str, Any]
Table = tuple[str, Sequence[str], list[list[str]]]
FIGURES = {
    "figure_accuracy": draw_accuracy,
    "figure_choices": draw_choices,
    "figure_channel": draw_channel,
    "figure_kept": draw_kept,
    "figure_foreground": draw_foreground,
    "figure_speed": draw_speed,
}
NOTE = (
    "95 % intervals: Wilson's for accuracies, else the bootstrap over images; differences to the gates are taken image "
    "by image. *kept*: patches behind a gate, mean over gates. *object / kept*: share of the object's area in patches "
    "that are kept at the last gate, over the share of patches kept there; 1 is chance. *rate*: channel uses per value "
    "of the image; *+ side*: what says which tokens were sent, at the capacity of the link. Rankings and merging run "
    "on the backbone that was trained with the gates, at the counts that the gates kept of each image, without a "
    "training or a tuning trial of their own, and without the budget token unless it says so. *trained so*: a training "
    "of its own with that choice at all budgets, at the same counts. A model for one budget is a training of its own "
    "too. Where tokens are lost, which ones differs from method to method, and so does what is "
    "kept behind the channel."
)


def draw(result: Result, folder: Path) -> list[Path]:
    """Write the figures (PNG and SVG) and table.md into a folder; the paths that were written."""
    return save_all(FIGURES, result, folder, table=table_markdown(result))


def table_markdown(result: Result) -> str:
    """Everything that has a number, a table for each question."""
    lines = [f"# {result['model'] or 'Token selection'}"]
    for name, header, rows in tables(result):
        lines += ["", f"## {name}", "", f"| {' | '.join(header)} |", "| --- " * len(header) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", *sentences(result), "", NOTE, ""])


def table_text(result: Result, *, width: int | None = None) -> str:
    """The same for a terminal of so many columns."""
    lines: list[str] = []
    for name, header, rows in tables(result):
        lines += ["", name, *columns(header, rows, width=width)]
    return "\n".join([*lines, "", *sentences(result)]).lstrip("\n")


def sentences(result: Result) -> list[str]:
    """What the result is held against."""
    found = []
    gap = result["calibration"]["largest_gap"]
    if gap is not None:
        low, high = result["calibration"]["over"]
        there = [point["alpha"] for point in result["calibration"]["points"] if low <= point["alpha"] <= high]
        budgets = f"{plural(len(there), 'budget')} from {min(there):g} to {max(there):g}"
        found.append(f"Kept shares follow alpha within {gap:.2g}, at {budgets}.")
    counted = [one for one in result["monotone"] if one["pairs"]]
    if counted:
        first, later = counted[0], counted[1:]
        said = f"Of {first['pairs']} rises of the budget, {first['falls']} kept fewer patches at the first gate"
        worst = max(later, key=lambda one: one["share"], default=None)
        more = "" if worst is None else f", and at worst {percent_text(worst['share'])} at a later one"
        found.append(f"{said}{more}.")
    return found


def tables(result: Result) -> Iterator[Table]:
    links = dict.fromkeys((cell["channel"], cell["level"]) for cell in result["cells"])
    for channel, level in links:
        cells = [cell for cell in result["cells"] if (cell["channel"], cell["level"]) == (channel, level)]
        columns = ("alpha", "chosen by", "kept", "sent", "MACs", "rate", "+ side", "accuracy", "- gates")
        objects = any(cell["foreground"] for cell in cells)
        rows = [_row(cell) + ([_over_kept(cell)] if objects else []) for cell in cells]
        yield (
            link_name(channel, level),
            (*columns, *(("object / kept",) if objects else ()), "n"),
            [[*row, str(cell["images"])] for row, cell in zip(rows, cells, strict=True)],
        )
    if result["adaptivity"]:
        yield (
            "How much images differ",
            ("alpha", "kept", "s.d. over images", "least", "most", "correlation with the whole model's loss"),
            [_adapted(one, result) for one in result["adaptivity"]],
        )
    if any(one["pairs"] for one in result["monotone"]):
        rows = [
            [
                str(one["block"]),
                str(one["pairs"]),
                str(one["falls"]),
                percent_text(one["share"]),
                percent_text(one["swapped"]),
            ]
            for one in result["monotone"]
        ]
        yield "More budget, fewer patches", ("gate before block", "pairs", "falls", "share", "patches swapped"), rows
    if result["speed"]:
        timed = ("device", "threads", "batch", "alpha", "kept", "images a second", "of the whole model's")
        yield "Speed, dropped tokens taken out", timed, [_speed(one) for one in result["speed"]]


def _row(cell: Mapping[str, Any]) -> list[str]:
    name = named(cell["method"])
    whole = cell["method"] == "gate" and cell["alpha"] == 1
    return [
        f"{cell['alpha']:g}",
        "nothing dropped" if whole else name + (f" ({cell['model']})" if cell["model"] else ""),
        f"{cell['kept']:.3f}",
        f"{cell['sent']:.1f}",
        f"{100 * cell['macs_share']:.0f} %",
        f"{cell['rate']:.4f}",
        "" if cell["side_rate"] is None else f"{cell['side_rate']:.4f}",
        interval_text(cell["accuracy"], digits=3),
        "" if cell["to_gate"] is None else interval_text(cell["to_gate"], digits=3, sign="+"),
    ]


def _over_kept(cell: Mapping[str, Any]) -> str:
    found = cell["foreground"]
    return "" if not found else interval_text(found["over_kept"][-1], digits=2)


def _adapted(one: Mapping[str, Any], result: Result) -> list[str]:
    kept = {point["alpha"]: point["kept"] for point in result["calibration"]["points"]}
    numbers = [kept.get(one["alpha"]), one["spread"], one["least"], one["most"]]
    shown = ["" if number is None else f"{number:.3f}" for number in numbers]
    return [f"{one['alpha']:g}", *shown, interval_text(one["with_difficulty"], digits=2, sign="+")]


def _speed(one: Mapping[str, Any]) -> list[str]:
    ratio = "" if one["to_whole"] is None else f"{one['to_whole']:.2f}"
    rate = f"{one['per_second']:.0f} ({one['slowest']:.0f} to {one['fastest']:.0f})"
    head = [one["device"], str(one["threads"]), str(one["batch"])]
    return [*head, f"{one['alpha']:g}", f"{one['kept']:.2f}", rate, ratio]


def link_name(channel: str, level: float | None) -> str:
    if level is None:
        return "Without a channel"
    return {
        "awgn": f"Gaussian noise, SNR {level:g} dB",
        "rayleigh": f"Rayleigh fading, mean SNR {level:g} dB",
        "erasure": f"Each token lost with probability {level:g}",
    }[channel]


def percent_text(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2g} %"


def interval_text(interval: Mapping[str, Any], *, digits: int, sign: str = "") -> str:
    if interval["value"] is None:
        return ""
    value, low, high = (
        None if interval[name] is None else f"{interval[name]:{sign}.{digits}f}" for name in ("value", "low", "high")
    )
    return f"{value}" if low is None else f"{value} [{low}, {high}]"
