"""Where the attention goes that a mask takes away: one bar for each model and number of sinks."""

from collections.abc import Sequence
from typing import Any

from sinklens.report.masking_grid import Entry, Result, models_of
from sinklens.report.style import COLOURS, PAGE, escape_missing, new_figure

# Part: its words, colour and hatch. The hatches tell the parts apart without colour.
PARTS = {
    "neighbours": ("keys within 2 positions", COLOURS[0], ""),
    "next_ranked": ("next ranked keys", COLOURS[4], "////"),
    "others": ("other keys", "#FFFFFF", "...."),
    "null": ("null term of the softmax", COLOURS[3], "xxxx"),
}
BAR = 0.19  # inches


def flow_bars(result: Result) -> list[Entry]:
    """The flows of sinks with the family's own settings and a number of keys, by task, model and number."""
    tops = {
        (family["model"], family["task"], cell["condition"]): cell["top"]
        for family in result["families"]
        for cell in family["cells"]
        if cell["choose"] == "sinks" and cell["plain"] and cell["top"] is not None
    }
    keyed = [((one["model"], one["task"], one["condition"]), one) for one in result["flows"]]
    models = models_of(result)
    found = [(one["task"], models.index(one["model"]), tops[key], one) for key, one in keyed if key in tops]
    return [one for *_, one in sorted(found, key=lambda bar: bar[:3]) if one["others"] is not None]


def draw_flow(result: Result) -> Any | None:
    """A panel for each task; at the right end of a bar, the share of heads in which a new sink forms."""
    bars = flow_bars(result)
    if not bars:
        return None
    tasks = list(dict.fromkeys(one["task"] for one in bars))
    most = max(sum(one["task"] == task for one in bars) for task in tasks)
    figure = new_figure(width=PAGE, height=BAR * most + 1.3)
    axes = figure.subplots(1, len(tasks), squeeze=False, sharex=True)[0]
    for axis, task in zip(axes, tasks, strict=True):
        axis.set_title(escape_missing(task))
        _bars(axis, [one for one in bars if one["task"] == task])
        axis.set_xlabel("share of the attention taken away")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), handlelength=2.4)
    return figure


def _bars(axis: Any, bars: Sequence[Entry]) -> None:
    places = range(len(bars))
    left = [0.0] * len(bars)
    for part, (label, colour, hatch) in PARTS.items():
        sizes = [one[part] for one in bars]
        if not any(sizes):
            continue
        axis.barh(
            places, sizes, left=left, height=0.72, color=colour, hatch=hatch, edgecolor="#000000", linewidth=0.5,
            label=label,
        )  # fmt: skip
        left = [start + size for start, size in zip(left, sizes, strict=True)]
    for place, one in enumerate(bars):
        if one["new_sinks"] is not None:
            axis.text(1.03, place, f"{100 * one['new_sinks']:.0f} %", va="center", fontsize=7)
    axis.text(1.03, -1.0, "heads with\na new sink", va="bottom", fontsize=7)
    axis.set_yticks(places, [escape_missing(f"{one['model']}, {one['label']}") for one in bars])
    axis.set_ylim(len(bars) - 0.4, -0.6)
    axis.set_xlim(0, 1)
