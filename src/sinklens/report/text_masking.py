"""The figure of a text experiment: what masking costs, in nats a token, with intervals over chunks.

    python -m sinklens.report.text_masking DIR

reads DIR/result.json and writes DIR/text_masking.png and .svg, and DIR/table.md.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError
from sinklens.evaluation.conditions import Condition, counted, parse_condition
from sinklens.files import written_whole
from sinklens.report.style import COLOURS, PAGE, new_figure, save, styled

Cell = dict[str, Any]
KEYS = {"cached": ("o", COLOURS[1]), "recomputed": ("s", COLOURS[0])}
HEADER = (
    "cell", "chosen", "keys", "NLL", "difference to unmasked", "difference to random", "removed", "dose", "chunks",
    "draws",
)  # fmt: skip


def read_result(folder: Path) -> list[Cell]:
    """The cells of an experiment."""
    try:
        cells: list[Cell] = json.loads((folder / "result.json").read_text("utf-8"))["cells"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{folder} has no result of a text experiment ({error}); run one first") from None
    return sorted(cells, key=_order)


def draw(cells: Sequence[Cell], to: Path) -> list[Path]:
    """One line a choice of keys, one mark for each way of keeping keys and values."""
    masked = [cell for cell in cells if cell["to_unmasked"] is not None]
    if not masked:
        raise UsageError("no cell is masked, so there is nothing to draw; run more cells")
    names = list(dict.fromkeys(_name(cell) for cell in masked))
    with styled():
        figure = new_figure(width=PAGE, height=0.9 + 0.21 * len(names))
        axes = figure.subplots()
        for cell in masked:
            marker, colour = KEYS[_keys(cell)]
            place = len(names) - 1 - names.index(_name(cell)) + (0.16 if _keys(cell) == "cached" else -0.16)
            _mark(axes, cell, place, marker=marker, colour=colour)
        axes.axvline(0.0, color="#666666", linewidth=0.6)
        axes.set_yticks(range(len(names)), names[::-1])
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.set_xlabel("NLL minus unmasked (nats a token; 95 % interval over chunks)")
        for keys, (marker, colour) in KEYS.items():
            axes.plot([], [], marker, color=colour, markersize=4, label=keys)
        axes.legend(loc="lower right")
        return save(figure, to, name="text_masking")


def table(cells: Sequence[Cell]) -> str:
    """All cells as Markdown."""
    lines = [HEADER, ("---",) * len(HEADER), *(_line(cell) for cell in cells)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _mark(axes: Any, cell: Cell, place: float, *, marker: str, colour: str) -> None:
    found = cell["to_unmasked"]
    if found["low"] is not None:
        axes.plot([found["low"], found["high"]], [place, place], color=colour, linewidth=1.2)
    axes.plot([found["value"]], [place], marker, color=colour, markersize=4)


def _line(cell: Cell) -> tuple[str, ...]:
    random, taken = cell["to_random"], (cell["removed"], cell["dose"])
    return (
        _name(cell), _chosen(cell), _keys(cell) if cell["to_unmasked"] else "", f"{cell['nll']['value']:.3f}",
        _interval(cell["to_unmasked"]), _interval(random), *("" if one is None else f"{one:.2f}" for one in taken),
        str(cell["nll"]["n"]), str(cell["draws"]),
    )  # fmt: skip


def _interval(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    if found["low"] is None:
        return f"{found['value']:+.3f}"
    return f"{found['value']:+.3f} [{found['low']:+.3f}, {found['high']:+.3f}]"


def _name(cell: Cell) -> str:
    condition = parse_condition(cell["condition"])
    if condition.choose == "none":
        return "unmasked"
    if condition.choose == "first":
        return "position 0" + (", value 0" if condition.act == "zero" else "")
    what = counted(condition.top, condition.choose)
    if cell["ranked"] == "steps":
        return f"{what} a head, as in generation" + (", no clean prompt" if cell["clean"] == 1 else "")
    if condition.rank_by == "last_row":
        return f"{what} a head, by the prompt's last query"
    return f"{what} a head" if condition.scope == "head" else f"{what} for the whole model"


def _chosen(cell: Cell) -> str:
    if cell["ranked"] is None or parse_condition(cell["condition"]).choose == "random":
        return ""
    return "for every token, by the one before" if cell["ranked"] == "steps" else f"once, by {_judges(cell)}"


def _judges(cell: Cell) -> str:
    """Whose attention decides."""
    return "the prompt's last query" if parse_condition(cell["condition"]).rank_by == "last_row" else "the prompt"


def _keys(cell: Cell) -> str:
    """A text that is under the mask from its beginning has no clean keys in its cache."""
    return str(parse_condition(cell["condition"]).keys)


def _order(cell: Cell) -> tuple[Any, ...]:
    condition: Condition = parse_condition(cell["condition"])
    kinds = ("none", "first", "sinks", "random")
    kind = kinds.index(condition.choose) if condition.choose in kinds else len(kinds)
    steps = (cell["ranked"] == "steps") + (cell["clean"] == 1)
    by_last, scope = condition.rank_by or "", condition.scope or ""
    return kind, condition.act != "mask", steps, by_last, scope, condition.top or 0, condition.keys or ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of a text experiment")
    folder = parser.parse_args().folder
    cells = read_result(folder)
    with written_whole(folder / "table.md") as temporary:
        temporary.write_text(table(cells), encoding="utf-8")
    for path in (*draw(cells, folder), folder / "table.md"):
        print(path)


if __name__ == "__main__":
    main()
