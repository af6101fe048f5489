"""Tables of the key-norm page: does low stand above random and random above high, baselines, layers left whole.

A verdict is read from the paired difference: *yes* where its interval lies on the side of the claim, *no* where it lies
on the other, *open* where it holds 0.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sinklens.cache.settings import ORDERS
from sinklens.evaluation.compress_statistics import USUAL
from sinklens.report.masking_words import number, share, share_range

Entry = Mapping[str, Any]
Result = Mapping[str, Any]
VERDICTS = ("yes", "open", "no")


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def places(result: Result) -> Iterator[tuple[str, Sequence[Entry], bool]]:
    """A name, the cells and whether a loss is measured: one place a task and length."""
    for family in result["retrieval"]:
        yield f"{family['task']}, {family['length']} tokens", family["cells"], False
    for one in result["language"]:
        stride = "" if one["stride"] == 1 else f", cut every {one['stride']}"
        yield f"text, {one['length']} tokens{stride}", one["cells"], True


def order_rows(result: Result) -> list[list[str]]:
    """One row a place and budget: the three orders, and what the two differences say."""
    rows = []
    for name, cells, loss in places(result):
        for keep in _keeps(cells):
            three = [_find(cells, order, keep) for order in ("low", "random", "high")]
            if all(cell is not None for cell in three):
                low, random, high = (cell for cell in three if cell is not None)
                levels = [_level(cell, loss) for cell in (low, random, high)]
                differences = (low["to_random"], _turned(high["to_random"]))
                verdicts = [_verdict(one, upwards=not loss) for one in differences]
                rows.append([name, keep, *levels, *verdicts, _count(random)])
    return rows


def order_table(results: Mapping[str, Result]) -> str:
    """All models and tasks."""
    rows = [[result["model"], *row] for result in results.values() for row in order_rows(result)]
    claims = ("low better than random", "random better than high")
    columns = ("model", "task", "kept", "low", "random", "high", *claims, "n")
    return markdown(columns, rows) if rows else ""


def verdict_table(results: Mapping[str, Result]) -> str:
    """How often each verdict stands in the order table, by model and task."""
    counts: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for result in results.values():
        for task, *_, low, high, _n in order_rows(result):
            for claim, said in (("low better than random", low), ("random better than high", high)):
                counts[result["model"], task.partition(",")[0], claim][said.partition(":")[0]] += 1
    rows = [[*place, *(str(found[said]) for said in VERDICTS)] for place, found in counts.items()]
    return markdown(("model", "task", "claim", *VERDICTS), rows) if rows else ""


def baseline_table(name: str, cells: Sequence[Entry], *, loss: bool) -> str:
    """Orders downwards, budgets to the right; the usual layers whole."""
    keeps = _keeps(cells)
    there = {cell["order"] for cell in cells if cell["skip"] == USUAL}
    whole = [cell for cell in cells if cell["order"] == "none"]
    rows = [["whole cache", *(_level(whole[0], loss) for _ in keeps)]] if whole else []
    for order in (one for one in ORDERS if one in there):
        found = [_find(cells, order, keep) for keep in keeps]
        rows.append([order, *("" if cell is None else _level(cell, loss) for cell in found)])
    return markdown((name, *(f"{keep} kept" for keep in keeps)), rows)


def skip_table(result: Result) -> str:
    """Layers left whole, for the order low; empty where one set alone was tried."""
    rows = []
    for name, cells, loss in places(result):
        for keep in _keeps(cells):
            low = [cell for cell in cells if (cell["order"], cell["keep"]) == ("low", keep)]
            if len(low) < 2:
                continue
            for cell in sorted(low, key=lambda one: (len(one["skip"]), one["skip"])):
                to_usual = cell["to_usual_layers"]
                against = "" if to_usual is None else _difference(to_usual)
                count = str(cell.get("problems", cell.get("chunks")))
                rows.append([name, keep, cell["skip"] or "none", _level(cell, loss), against, count])
    columns = ("task", "kept", "layers whole", "value", "less layers 0 and 1 whole", "n")
    return markdown(columns, rows) if rows else ""


def needle_table(result: Result) -> str:
    """Means over the grid of lengths and depths."""
    rows = [
        ["whole cache" if grid["order"] == "none" else grid["order"], grid["keep"], number(grid["overall"])]
        for grid in result["grids"]
    ]
    return markdown(("order", "kept", "words found"), rows) if rows else ""


def block_table(rows: Sequence[Entry]) -> str:
    """What benchmarks/block_cache.py found, the ways to evict beside those to refresh."""
    told = []
    for row in rows:
        solved = dict(zip(("value", "low", "high"), row["solved"], strict=True))
        difference = dict(zip(("value", "low", "high"), row["difference"], strict=True))
        told.append(
            [
                row["model"], row["task"], row["way"], _range(solved), _difference(difference), f"{row['speed']:.2f}",
                f"{100 * row['held_share']:.0f} %" if row["held_bytes"] else "",
                f"{row['problems']}" + (f" x {row['draws']}" if row["draws"] > 1 else ""),
            ]
        )  # fmt: skip
    told.sort(key=lambda one: (one[0], one[1]))
    columns = ("model", "task", "cache", "solved", "less no cache", "speed", "held", "n")
    return markdown(columns, told)


def _find(cells: Sequence[Entry], order: str, keep: str) -> Entry | None:
    """With the usual layers whole."""
    found = (cell for cell in cells if (cell["order"], cell["keep"], cell["skip"]) == (order, keep, USUAL))
    return next((cell for cell in found if not cell["strict"]), None)


def _keeps(cells: Sequence[Entry]) -> list[str]:
    """Budgets, the largest first, shares before counts."""
    found = {cell["keep"] for cell in cells if cell["order"] != "none"}
    return sorted(found, key=lambda keep: (not keep.endswith("%"), -float(keep.removesuffix("%"))))


def _level(cell: Entry, loss: bool) -> str:
    if not loss:
        return _range(cell["value"])
    nll = cell["nll"]
    return (
        f"{nll['value']:.2f}"
        if nll["low"] is None
        else f"{nll['value']:.2f} <sub>{nll['low']:.2f}-{nll['high']:.2f}</sub>"
    )


def _range(interval: Entry) -> str:
    between = share_range(interval)
    return share(interval["value"]) + (f" <sub>{between}</sub>" if between else "")


def _difference(interval: Entry) -> str:
    value, low, high = (None if one is None else one + 0.0 for one in map(interval.get, ("value", "low", "high")))
    return f"{value:+.2f}" if low is None else f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"


def _verdict(interval: Entry, *, upwards: bool) -> str:
    """Of the claim that a difference is above 0 (upwards), or below it; the difference is said beside it."""
    low, high = interval["low"], interval["high"]
    said = _difference(interval)
    if low is None or low <= 0 <= high:
        return f"open: {said}"
    return f"{'yes' if (low > 0) == upwards else 'no'}: {said}"


def _turned(interval: Entry) -> Entry:
    """Of the difference the other way round."""
    low, high = interval["low"], interval["high"]
    return {
        "value": -interval["value"],
        "low": None if high is None else -high,
        "high": None if low is None else -low,
    }


def _count(cell: Entry) -> str:
    problems = cell.get("problems", cell.get("chunks"))
    return f"{problems}" + (f" x {cell['draws']}" if cell["draws"] > 1 else "")
