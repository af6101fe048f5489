"""Tables of the page on token selection: one row a way to choose, one column a budget."""

from collections.abc import Mapping, Sequence
from typing import Any

from sinklens.report.key_norm_tables import markdown
from sinklens.report.selection import interval_text, link_name, tables
from sinklens.report.selection_figures import FIXED, GATE, NAMES, TRAINED, WIRE, named, over_wire

Result = Mapping[str, Any]
Cell = Mapping[str, Any]
SMALL = 0.3  # budgets at which the gates are held against random and norm


def accuracies(result: Result, methods: Sequence[str]) -> str:
    """Accuracy with its interval."""
    return _by_budget(result, methods, lambda cell: interval_text(cell["accuracy"], digits=3))


def differences(result: Result, methods: Sequence[str]) -> str:
    """Accuracy minus that of the gates, on the same images."""
    others = [name for name in methods if name != GATE]
    return _by_budget(result, others, lambda cell: _difference(cell["to_gate"]))


def objects(result: Result, methods: Sequence[str]) -> str:
    """Share of the object kept over share of patches kept, at the last gate."""
    shown = [name for name in methods if any(cell["foreground"] for cell in over_wire(result, name))]
    return _by_budget(
        result,
        shown,
        lambda cell: interval_text(cell["foreground"]["over_kept"][-1], digits=2) if cell["foreground"] else "",
    )


def verdicts(result: Result) -> str:
    """How often the gates are better than random choice and than norms, at small budgets."""
    found = []
    for ranking in ("random", "norm"):
        cells = [cell for cell in over_wire(result, TRAINED + ranking) if cell["alpha"] <= SMALL and cell["to_gate"]]
        if not cells:
            continue
        better = sum(cell["to_gate"]["high"] < 0 for cell in cells)
        worse = sum(cell["to_gate"]["low"] > 0 for cell in cells)
        found.append(
            f"- against *{named(TRAINED + ranking)}* at alpha <= {SMALL:g}: the gates are better at {better} of "
            f"{len(cells)} budgets, worse at {worse}, not to be told apart at {len(cells) - better - worse}."
        )
    return "".join(f"{one}\n" for one in found)


def seeds(result: Result, other: Result) -> str:
    """The accuracy of two trainings that differ in their seed alone."""
    columns = ("alpha", "kept", "accuracy", "kept, other seed", "accuracy, other seed")
    second = {cell["alpha"]: cell for cell in over_wire(other, GATE)}
    rows = []
    for cell in over_wire(result, GATE):
        if cell["alpha"] in second:
            numbers = [
                (f"{one['kept']:.3f}", interval_text(one["accuracy"], digits=3))
                for one in (cell, second[cell["alpha"]])
            ]
            rows.append([f"{cell['alpha']:g}", *numbers[0], *numbers[1]])
    return markdown(columns, rows)


def channels(result: Result) -> str:
    """The gates' accuracy over every link, one column a budget."""
    cells = [cell for cell in result["cells"] if cell["method"] == GATE]
    links = dict.fromkeys((cell["channel"], cell["level"]) for cell in cells)
    alphas = sorted({cell["alpha"] for cell in cells if cell["channel"] != WIRE})
    found = {(cell["channel"], cell["level"], cell["alpha"]): cell for cell in cells}
    rows = []
    for channel, level in links:
        there = [found.get((channel, level, alpha)) for alpha in alphas]
        texts = ["" if one is None else interval_text(one["accuracy"], digits=3) for one in there]
        rows.append([link_name(channel, level), *texts])
    return markdown(("", *(_budget(alpha) for alpha in alphas)), rows)


def named_tables(result: Result, names: Sequence[str]) -> str:
    """Some tables of table.md."""
    return "\n".join(
        f"**{name}**\n\n" + markdown(header, rows) for name, header, rows in tables(result) if name in names
    )


def _by_budget(result: Result, methods: Sequence[str], text: Any) -> str:
    cells = {(name, cell["alpha"]): cell for name in methods for cell in over_wire(result, name)}
    alphas = sorted({alpha for _, alpha in cells})
    rows = [
        [_who(name), *("" if (name, alpha) not in cells else text(cells[name, alpha]) for alpha in alphas)]
        for name in methods
    ]
    return markdown(("chosen by", *(_budget(alpha) for alpha in alphas)), rows)


def _who(method: str) -> str:
    return f"**{NAMES[GATE]}**" if method == GATE else "one model a budget" if method == FIXED else named(method)


def _budget(alpha: float) -> str:
    return "1 (nothing dropped)" if alpha == 1 else f"{alpha:g}"


def _difference(interval: Mapping[str, Any] | None) -> str:
    return "" if interval is None else interval_text(interval, digits=3, sign="+")
