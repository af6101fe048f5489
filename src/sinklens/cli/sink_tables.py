"""What `sinklens sinks` prints for people: a line of what was found, then one small table a part."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sinklens.cli.output import stdout_console, terminal_width
from sinklens.sinks.tokens import display

Entry = Mapping[str, Any]
RATIOS = {
    "key_norm": "key",
    "value_norm": "value",
    "output_norm": "output",
    "hidden_norm": "hidden",
    "contribution": "contrib.",
}
VERDICTS = ("no-op", "broadcast", "mixed", "no sink")
WIDTH = 110  # of output that goes to a file
FEW = 10  # prompts: below, a percentile interval is clearly too narrow


def print_entry(entry: Entry) -> None:
    """One trace."""
    console = stdout_console(width=WIDTH)
    _heading(console, entry)
    for part in (_tracks, _tokens, _depth, _events, _explained, _mechanism, _agreement):
        part(console, entry)
    for part, why in entry["missing"].items():
        console.print(f"no {part}: {why}", markup=False, style="dim")
    samples = entry["overview"]["samples"]
    if 1 < samples < FEW:
        console.print(f"\nwith {samples} prompts the 95 % intervals are too narrow (docs/statistics.md)", style="dim")
    elif samples == 1:
        console.print("\none prompt: no intervals", style="dim")


def _heading(console: Console, entry: Entry) -> None:
    seen, model, question = entry["overview"], entry["model"], entry["question"]
    stored, steps = _range(seen["stored_steps"]), _range(seen["steps"])
    asked = entry["prompts"]
    of_all = f" of {asked}" if asked != seen["samples"] else ""
    console.print(Text(entry["name"], style="bold"), Text(f"({shown_path(entry['trace'])})", style="dim"))
    parts = (
        f"{seen['samples']}{of_all} prompt{'s' * (seen['samples'] != 1 or bool(of_all))}",
        f"{steps} steps" if stored == steps else f"{stored} of {steps} steps",
        f"{_part(len(seen['layers']), model['layers'])} layers x {_part(seen['heads'], model['heads'])} heads",
        f"{_range(seen['tokens'])} tokens",
    )
    console.print(
        ", ".join(parts) + ("" if entry["complete"] else "; not complete"),
        markup=False,
        soft_wrap=terminal_width() is None,
    )
    console.print(
        f"sinks by {question['metric']} {question['value']:g}: {_interval(seen['sink_share'])} of tokens "
        f"({seen['sinks']:,} of {seen['cells']:,}), which absorb {_interval(seen['absorbed'])} of attention",
        markup=False,
        soft_wrap=terminal_width() is None,
    )


def _part(some: int, whole: int) -> str:
    return str(whole) if some == whole else f"{some} of {whole}"


def _tracks(console: Console, entry: Entry) -> None:
    tracks = entry["tracks"]
    if tracks is None or not tracks["tracks"]:
        return
    median = tracks["lifetimes"]["tracks"]["median"]
    lives = (
        "more than half outlive the trace"
        if median is None
        else f"half live at most {median:g} step{'s' * (median != 1)}"
    )
    question = entry["question"]
    by = "" if question["metric"] == "epsilon" else " by epsilon 3, which alone can be followed"
    table = _table(f"{tracks['tracks']} tracks{by}; {lives}", ("kind", "tracks", "share", "95 %", "under the null"))
    for name, share in tracks["shares"].items():
        if name != "right_minus_left":
            style = "dim" if name == "moving" else ""
            cells = (
                "(all that move)" if name == "moving" else name,
                str(share["tracks"]),
                _percent(share["value"]),
                _range_of(share),
                _percent(share["null"]),
            )
            table.add_row(*cells, style=style)
    console.print("", table, sep="\n")


def _tokens(console: Console, entry: Entry) -> None:
    counted = entry["tokens"]
    if counted is None or not entry["overview"]["sinks"]:
        return
    for title, name in (("token", "tokens"), ("class", "classes"), ("region", "regions")):
        table = _table(f"Sinks by {title}", (title, "sinks", "share", "95 %", "of all tokens", "lift"))
        for row in counted[name]:
            label = row["name"] if name != "tokens" else f"{display(row['name'])}  ({row['token_class']})"
            lift = "" if row["lift"] is None else f"{row['lift']:.1f}"
            table.add_row(
                label, f"{row['sinks']:,}", _percent(row["share"]), _range_of(row), _percent(row["base"]), lift
            )
        console.print("", table, sep="\n")


def _depth(console: Console, entry: Entry) -> None:
    depth = entry["depth"]
    if depth is None:
        return
    words = {
        "sinks": "sinks a head and step",
        "absorbed": "attention they absorb",
        "share": "fair shares of the main sink",
        "mass": "mass of the main sink",
        "gini": "inequality (Gini)",
        "effective": "tokens attended to",
    }
    table = _table("With depth", ("", "first layer", "last layer", "Spearman", "95 %"))
    for name, word in words.items():
        layers = [one["value"] for one in depth["by_layer"][name]]
        correlation = depth["spearman"][name]
        table.add_row(
            word, _number(layers[0]), _number(layers[-1]), _number(correlation["value"]), _numbers_of(correlation)
        )
    console.print("", table, sep="\n")


def _events(console: Console, entry: Entry) -> None:
    rows = [row for row in entry["events"] or () if row["measure"] == "fair_share"]
    if not rows:
        return
    table = _table(
        "Fair share after a token appeared"
        if entry["model"]["causal"]
        else "Fair share around the commit (0: masked for the last time)",
        ("steps after", *(f"{row['offset']:+d}" for row in rows)),
        padding=1,
    )
    table.add_row("committing", *(f"{row['value']:.2f}" for row in rows))
    table.add_row("others", *("" if row["control"] is None else f"{row['control']:.2f}" for row in rows))
    table.add_row("difference", *_cells(rows, "difference"))
    if any(row["difference_low"] is not None for row in rows):
        table.add_row("  from", *_cells(rows, "difference_low"), style="dim")
        table.add_row("  to", *_cells(rows, "difference_high"), style="dim")
    console.print("", table, sep="\n")


def _cells(rows: Sequence[Entry], name: str) -> list[str]:
    return ["" if row[name] is None else f"{row[name]:+.2f}" for row in rows]


def _explained(console: Console, entry: Entry) -> None:
    explained = entry["explained"]
    if explained is None or explained["full"] is None:
        return
    checked = explained["full_cv"] is not None
    how = "on prompts left out" if checked else "in-sample: one prompt, nothing to check it on"
    table = _table(f"Explained share of sink status ({how})", ("factor", "alone", "95 %", "unique", "95 %"))
    for factor in explained["factors"]:
        if factor["levels"] < 2:  # nothing is masked in an autoregressive run
            continue
        alone, unique = (
            factor[f"{name}_cv"] or {"value": factor[name], "low": None, "high": None} for name in ("alone", "unique")
        )
        table.add_row(
            factor["factor"], _percent(alone["value"]), _range_of(alone), _percent(unique["value"]), _range_of(unique)
        )
    full = explained["full_cv"] or {"value": explained["full"], "low": None, "high": None}
    table.add_row("all", _percent(full["value"]), _range_of(full), "", "", style="bold")
    console.print("", table, sep="\n")


def _mechanism(console: Console, entry: Entry) -> None:
    layers = entry["mechanism"]
    if not layers:
        return
    known = [name for name in RATIOS if any(name in layer["ratios"] for layer in layers)]
    mean = " (others by their mean)" if any(layer["centre"] == "mean" for layer in layers) else ""
    title = f"Sinks against other tokens, as ratios{mean}; heads by verdict"
    table = _table(title, ("layer", *(RATIOS[name] for name in known), *VERDICTS, "undecided"), padding=1)
    for layer in layers:
        ratios = (_number(layer["ratios"].get(name, {}).get("value")) for name in known)
        found = [head["verdict"] for head in layer["heads"]]
        counts = (str(found.count(name)) for name in (*VERDICTS, None))
        table.add_row(str(layer["layer"]), *ratios, *counts)
    console.print("", table, sep="\n")
    if entry["model"]["causal"] and any(head["verdict"] is None for layer in layers for head in layer["heads"]):
        console.print("undecided: the rank of a head's output is known at the prefill only", style="dim")


def _agreement(console: Console, entry: Entry) -> None:
    found = entry["agreement"]
    if found is None:
        return
    table = _table("Do definitions agree? (Jaccard, all layers)", ("", *found["metrics"]))
    for name, row in zip(found["metrics"], found["jaccard"], strict=True):
        table.add_row(name, *(_number(value) for value in row))
    console.print("", table, sep="\n")


def shown_path(path: str) -> str:
    """From here, where that is shorter."""
    place = Path(path)
    return str(place.relative_to(Path.cwd())) if place.is_relative_to(Path.cwd()) else path


def _table(title: str, columns: Sequence[str], *, padding: int = 2) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, padding=(0, padding, 0, 0), pad_edge=False
    )
    for number, name in enumerate(columns):
        justify: Any = "right" if number else "left"
        table.add_column(name, justify=justify, header_style="dim", overflow="fold")
    return table


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _range_of(share: Entry) -> str:
    return "" if share["low"] is None else f"{100 * share['low']:.1f} to {100 * share['high']:.1f}"


def _numbers_of(share: Entry) -> str:
    return "" if share["low"] is None else f"{_number(share['low'])} to {_number(share['high'])}"


def _interval(share: Entry) -> str:
    between = _range_of(share)
    return _percent(share["value"]) + (f" [{between}]" if between else "")


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"
