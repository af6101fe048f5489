"""The parts of a results page on masking, as Markdown tables; each is empty where the result has no such cells."""

from collections.abc import Iterator, Sequence

from sinklens.evaluation.conditions import counted
from sinklens.report.masking_flow import PARTS, flow_bars
from sinklens.report.masking_grid import Entry, Result, family_kind, task_name
from sinklens.report.masking_thresholds import threshold_cells
from sinklens.report.masking_words import chance, doses, number, points, share, share_range

SETTINGS = {
    "act": "Minus infinity against zero and mean value",
    "scope": "Scope: a ranking for each head, layer, or the whole model",
    "keys": "Keys cached or recomputed",
    "measure": "Where the ranking is read",
    "source": "When the ranking is made",
    "rank_by": "What is ranked",
    "queries": "Who is denied the keys",
    "prefill": "The first step",
}


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; nothing where there are no rows."""
    if not rows:
        return ""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(one.replace('|', '/') for one in line)} |" for line in lines) + "\n"


def primary_section(result: Result) -> str:
    found = [(family, family["primary"]) for family in result["families"] if family["primary"]]
    rows = [[*_who(result, family), str(one["n"]), one["label"], *difference(one)] for family, one in found]
    return table(["model", "task", "problems", "contrast", "points [interval]", "p", "dose"], rows)


def setting_section(result: Result, kind: str) -> str:
    """What one changed setting does: both accuracies, and their difference."""
    rows = []
    for family, one in _contrasts(result, kind):
        a, b = (_cell(family, one[side]) for side in ("a", "b"))
        rows.append([*_who(result, family), a["label"], accuracy(a), accuracy(b), *difference(one)])
    return table(["model", "task", "cell", "it", "family's own", "points [interval]", "p (Holm)", "dose"], rows)


def contrast_section(result: Result, kind: str) -> str:
    rows = [
        [*_who(result, family), one["label"], *difference(one), "yes" if one["robust"] else "no"]
        for family, one in _contrasts(result, kind)
    ]
    return table(["model", "task", "contrast", "points [interval]", "p (Holm)", "dose", "robust"], rows)


def cell_section(result: Result) -> str:
    """Every cell: accuracy, dose, keys, seconds."""
    rows = []
    for family in result["families"]:
        for cell in family["cells"]:
            dose = number(cell["dose"]) + (", differs" if cell["dose_differs"] else "")
            told = [accuracy(cell), str(cell["draws"]), dose, number(cell["keys_removed"])]
            rows.append([*_who(result, family), cell["label"], *told, number(cell["seconds"], digits=3)])
    titles = ["model", "task", "cell", "right [interval]", "draws", "dose", "keys hidden a head", "seconds a problem"]
    return table(titles, rows)


def interaction_section(result: Result) -> str:
    rows = []
    for one in result["interactions"]:
        who, what = f"{one['causal']} - {one['diffusion']}", f"{counted(one['top'])} - {one['against']}"
        row = [who, task_name(result, one), "all" if one["refused"] else what, *_interaction(one)]
        rows += [] if row in rows else [row]  # a refusal is that of the models, whatever the contrast
    return table(["models", "task", "contrast", "points [interval]", "log-odds [interval]", "p (Holm)", "dose"], rows)


def square_section(result: Result) -> str:
    """The corners, then the differences of differences."""
    corners, differences = [], []
    for square in result["squares"]:
        task, top = task_name(result, square), str(square["top"])
        for one in square["corners"]:
            who = [f"{one['model']} ({family_kind(one['causal'])})", task, top, one["keys"]]
            corners.append([*who, accuracy(one), points(one["difference"]), number(one["dose"])])
        for one in square["within"]:
            differences.append([f"{one['model']}: cached - recomputed", task, top, *_interaction(one)])
        for one in square["across"]:
            differences.append([f"that of {one['causal']} - that of {one['diffusion']}", task, top, *_interaction(one)])
    first = table(["model", "task", "sinks", "keys", "right [interval]", "- unmasked, points", "dose"], corners)
    titles = ["difference", "task", "sinks", "points [interval]", "log-odds [interval]", "p (Holm)", "dose"]
    return "\n".join(part for part in (first, table(titles, differences)) if part)


def threshold_section(result: Result) -> str:
    rows = []
    for family in result["families"]:
        cells = threshold_cells(family)
        for cell in [*cells, *(one for one in family["cells"] if cells and one["choose"] == "none")]:
            epsilon = "unmasked" if cell["epsilon"] is None else f"{cell['epsilon']:g}"
            told = [number(cell["keys_removed"]), number(cell["seconds"], digits=3), number(cell["dose"])]
            rows.append([*_who(result, family), epsilon, accuracy(cell), *told])
    return table(
        ["model", "task", "epsilon", "right [interval]", "keys hidden a head", "seconds a problem", "dose"], rows
    )


def flow_section(result: Result) -> str:
    bars = flow_bars(result)
    parts = [name for name in PARTS if any(one[name] for one in bars)]
    rows = [
        [one["model"], one["task"], one["label"], *(share(one[name]) for name in parts), share(one["new_sinks"])]
        for one in bars
    ]
    return table(["model", "task", "cell", *(PARTS[name][0] for name in parts), "heads with a new sink"], rows)


def accuracy(cell: Entry) -> str:
    return f"{share(cell['accuracy']['value'])} <sub>{share_range(cell['accuracy'])}</sub>"


def difference(one: Entry) -> list[str]:
    return [points(one), chance(one["adjusted_p"]), doses(one["dose"], one["dose_differs"])]


def _interaction(one: Entry) -> list[str]:
    if one["refused"]:
        return [one["refused"], "", "", ""]
    told = "; ".join(doses(alike, differs=False) for alike in one["dose"])
    flag = ", dose differs" if one["dose_differs"] else ""
    log_odds = points(one["log_odds"], scale=1.0, digits=2)
    return [points(one["points"]), log_odds, chance(one["adjusted_p"]), told + flag]


def _contrasts(result: Result, kind: str) -> Iterator[tuple[Entry, Entry]]:
    for family in result["families"]:
        yield from ((family, one) for one in family["contrasts"] if one["kind"] == kind)


def _cell(family: Entry, condition: str) -> Entry:
    found: Entry = next(cell for cell in family["cells"] if cell["condition"] == condition)
    return found


def _who(result: Result, family: Entry) -> list[str]:
    return [family["model"], task_name(result, family)]
