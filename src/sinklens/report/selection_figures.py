"""Figures of a selection result: accuracy against what is spent and against the channel, and what is kept."""

from collections.abc import Mapping, Sequence
from typing import Any

from sinklens.report.masking_marks import handle, legend, mark_point, sign
from sinklens.report.style import COLUMN, PAGE, line_style, new_figure, panels

Result = Mapping[str, Any]
Entry = Mapping[str, Any]
GATE, FIXED, WIRE, TRAINED = "gate", "fixed", "wire", "trained:"
FIRST = (
    "gate",
    "fixed",
    "random+budget",
    "norm+budget",
    "random",
    "norm",
    "key_norm",
    "key_norm_high",
    "cls",
    "avit",
    "tome",
)  # order of lines; what is not named here comes last
NAMES = {
    "gate": "learnt gates", "fixed": "one model a budget", "random": "random", "norm": "norm",
    "random+budget": "random, with budget token", "norm+budget": "norm, with budget token",
    "key_norm": "low key norm", "key_norm_high": "high key norm", "cls": "attention of cls", "avit": "A-ViT score",
    "tome": "ToMe",
}  # fmt: skip
BOLD = 1.9  # points: the gates' line, which the others are compared with
LINE = {"color": "#888888", "linewidth": 0.7, "linestyle": (0, (2, 2)), "zorder": 0}


def methods_of(result: Result) -> list[str]:
    there = {cell["method"] for cell in result["cells"]}
    return sorted(there, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))


def named(method: str) -> str:
    """A method in words."""
    ranking = method.removeprefix(TRAINED)
    return NAMES.get(ranking, ranking) + (", trained so" if method != ranking else "")


def over_wire(result: Result, method: str) -> list[Entry]:
    """Cells of one method without a channel, by budget; only the gate has one at alpha 1, which is the whole model."""
    found = [cell for cell in result["cells"] if cell["method"] == method and cell["channel"] == WIRE]
    return sorted(found, key=lambda cell: cell["kept"])


def draw_accuracy(result: Result) -> Any | None:
    """Accuracy against the budget, kept patches, and multiply-accumulates; a line for each way to choose.

    Where models were trained with their own choice, these are shown, and the others have a figure of their own.
    """
    return _accuracies(result, fair_methods(result))


def fair_methods(result: Result) -> list[str]:
    """What got a training of its own, where anything did; else all."""
    methods = methods_of(result)
    fair = [name for name in methods if name in (GATE, FIXED) or name.startswith(TRAINED)]
    return fair if any(name.startswith(TRAINED) for name in methods) else methods


def draw_choices(result: Result) -> Any | None:
    """The same for other choices on the backbone that was trained with the gates."""
    methods = methods_of(result)
    if not any(name.startswith(TRAINED) for name in methods):
        return None
    return _accuracies(result, [name for name in methods if name != FIXED and not name.startswith(TRAINED)])


def _accuracies(result: Result, methods: Sequence[str]) -> Any | None:
    if not methods:
        return None
    figure = new_figure(width=PAGE, height=2.4)
    axes = figure.subplots(1, 3, sharey=True)
    wanted = (
        ("alpha", "budget alpha"),
        ("kept", "patches kept, mean over gates"),
        ("macs_share", "MACs, of the whole"),
    )
    for axis, (name, label) in zip(axes, wanted, strict=True):
        for number, method in enumerate(methods):
            _line(
                axis,
                over_wire(result, method),
                name,
                number,
                join=method != FIXED,
                bold=method == GATE,
            )
        axis.set_xlabel(label)
    axes[0].set_ylabel("accuracy")
    legend(figure, _handles(methods))
    return figure


def draw_channel(result: Result) -> Any | None:
    """The gate's accuracy against SNR and against the share of tokens lost; a line for each budget."""
    kinds = [kind for kind in ("awgn", "rayleigh", "erasure") if any(c["channel"] == kind for c in result["cells"])]
    if not kinds:
        return None
    cells = [cell for cell in result["cells"] if cell["method"] == GATE]
    alphas = sorted({cell["alpha"] for cell in cells if cell["channel"] in kinds})
    figure = new_figure(width=PAGE if len(kinds) > 1 else COLUMN, height=2.3)
    axes = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axis, kind in zip(axes, kinds, strict=True):
        for number, alpha in enumerate(alphas):
            shown = [cell for cell in cells if cell["channel"] == kind and cell["alpha"] == alpha]
            if kind == "erasure":  # nothing lost is a wire
                shown += [{**c, "level": 0.0} for c in cells if c["channel"] == WIRE and c["alpha"] == alpha]
            _line(axis, sorted(shown, key=lambda cell: cell["level"]), "level", number)
        words = {"awgn": "SNR (dB)", "rayleigh": "mean SNR (dB), Rayleigh fading", "erasure": "share of tokens lost"}
        axis.set_xlabel(words[kind])
    axes[0].set_ylabel("accuracy")
    names = ["whole model" if alpha == 1 else f"alpha {alpha:g}" for alpha in alphas]
    legend(figure, [handle(name, marker=sign(n), **line_style(n)) for n, name in enumerate(names)])
    return figure


def draw_kept(result: Result) -> Any | None:
    """Patches kept against the budget, behind every gate; and how much images differ, with their difficulty."""
    cells = [cell for cell in over_wire(result, GATE) if cell["alpha"] < 1]
    if not cells:
        return None
    figure, (left, right) = panels(2, height=2.4)
    blocks = result["shape"]["gated"]
    for number, block in enumerate(blocks):
        xs, ys = [cell["alpha"] for cell in cells], [cell["kept_by_gate"][number] for cell in cells]
        left.plot(xs, ys, label=f"block {block}", marker=sign(number), markersize=3, **line_style(number))
    left.plot([0, 1], [0, 1], **LINE)
    left.set(xlabel="budget alpha", ylabel="patches kept", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    left.legend()
    adapted = [point for point in result["adaptivity"] if point["spread"] is not None]
    for point in adapted:
        if point["with_difficulty"]["value"] is not None:
            mark_point(right, point["alpha"], point["with_difficulty"], colour="#0072B2", marker="o", hollow=False)
    right.plot(
        [one["alpha"] for one in adapted], [one["spread"] for one in adapted], color="#D55E00", marker="s", markersize=3
    )
    right.axhline(0, **LINE)
    right.set(xlabel="budget alpha", ylabel="over images", xlim=(-0.02, 1.02))
    names = (("rank correlation with the loss", "#0072B2", "o", "none"), ("s.d. of kept share", "#D55E00", "s", "-"))
    entries = [handle(n, color=c, marker=m, linestyle=line) for n, c, m, line in names]
    right.legend(handles=entries, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, handlelength=1.5)
    return figure


def draw_foreground(result: Result) -> Any | None:
    """Share of the object that is kept, over the share of patches kept, at the last gate."""
    methods = [name for name in fair_methods(result) if any(cell["foreground"] for cell in over_wire(result, name))]
    if not methods:
        return None
    figure, (left, right) = panels(2, height=2.4)
    for number, method in enumerate(methods):
        shown = [
            {
                "kept": cell["kept_by_gate"][-1],
                "recall": cell["foreground"]["recall"][-1],
                "over_kept": cell["foreground"]["over_kept"][-1],
            }
            for cell in over_wire(result, method)
            if cell["foreground"] and cell["alpha"] < 1
        ]
        shown = sorted((one for one in shown if one["over_kept"]["value"] is not None), key=lambda one: one["kept"])
        for axis, name in ((left, "recall"), (right, "over_kept")):
            _line(
                axis,
                shown,
                "kept",
                number,
                value=name,
                join=method != FIXED,
                bold=method == GATE,
            )
    left.plot([0, 1], [0, 1], **LINE)
    right.axhline(1, **LINE)
    left.set(xlabel="patches kept, last gate", ylabel="of the object kept", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    right.set(xlabel="patches kept, last gate", ylabel="that over patches kept", xlim=(-0.02, 1.02))
    legend(figure, _handles(methods))
    return figure


def draw_speed(result: Result) -> Any | None:
    """Images a second over those of the whole model, against the budget; beside what MACs would allow."""
    speed = [one for one in result["speed"] if one["to_whole"] is not None]
    if not speed:
        return None
    groups = list(dict.fromkeys((one["device"], one["threads"], one["batch"]) for one in speed))
    figure, (axis,) = panels(1, height=2.4)
    for number, group in enumerate(groups):
        shown = [one for one in speed if (one["device"], one["threads"], one["batch"]) == group]
        xs, ys = [one["alpha"] for one in shown], [one["to_whole"] for one in shown]
        axis.plot(xs, ys, marker=sign(number), markersize=3, **line_style(number))
    macs = {cell["alpha"]: cell["macs_share"] for cell in over_wire(result, GATE)}
    axis.plot(sorted(macs), [1 / macs[alpha] for alpha in sorted(macs)], **LINE)
    axis.axhline(1, color="#BBBBBB", linewidth=0.6, zorder=0)
    axis.set(xlabel="budget alpha", ylabel="speed, of the whole model's")
    names = [f"{device}, batch {batch}" for device, _, batch in groups]
    lines = [handle(name, marker=sign(n), **line_style(n)) for n, name in enumerate(names)]
    legend(figure, [*lines, handle("as MACs would have it", color=LINE["color"], linestyle=LINE["linestyle"])])
    return figure


def _line(
    axis: Any,
    cells: Sequence[Entry],
    x: str,
    number: int,
    *,
    value: str = "accuracy",
    join: bool = True,
    bold: bool = False,
) -> None:
    """Points with their intervals; without `join` hollow ones, each of a model of its own."""
    style, places = line_style(number), [cell[x] for cell in cells]
    if join:
        axis.plot(places, [cell[value]["value"] for cell in cells], linewidth=BOLD if bold else None, **style)
    for place, cell in zip(places, cells, strict=True):
        mark_point(axis, place, cell[value], colour=style["color"], marker=sign(number), hollow=not join)


def _handles(methods: Sequence[str]) -> list[Any]:
    """As they are drawn: models for one budget are hollow points, and no line leads from one to the next."""
    lines = [line_style(number) for number in range(len(methods))]
    points = [
        {**style, "linestyle": "none", "markerfacecolor": "#FFFFFF"} if name == FIXED else style
        for name, style in zip(methods, lines, strict=True)
    ]
    return [
        handle(named(name), marker=sign(number), **style)
        for number, (name, style) in enumerate(zip(methods, points, strict=True))
    ]
