"""A card as a page: four tables and a sentence each, the same for Markdown, HTML and LaTeX.

`sections(card)` says what is on it; `card_formats.py` writes it down. Numbers stand with their 95 % interval over
prompts, problems or chunks of text, as "value (low to high)"; without one where there is a single unit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sinklens.report.card_cells import FEW, NOTHING_TO_LOSE
from sinklens.report.card_numbers import by_masks, numbers, percent, plural, shares
from sinklens.sinks.tokens import display

LISTED = 3  # classes and tokens in the table of places
WORDS = {
    "no cost shown": "hiding the top sinks shows no cost here",
    "no-op": "with a value of zero in their place less than half of the cost remains: attention is parked there",
    "bias": "a value of zero costs, and of that the mean value leaves less than half: any average would serve as well",
    "broadcast": "minus infinity, zero and mean value all cost, and most heads with a sink write one direction for all "
    "queries: the sink's own value is read everywhere alike",
    "content": "minus infinity, zero and mean value all cost, and heads write several directions: what these tokens "
    "hold is read",
    "undecided": "too few units or right answers, or the three effects are too close for so many",
}
SCORES = {"accuracy": "accuracy", "nll": "nll", "elbo": "minus elbo"}
ACTS = {"mask": "minus infinity", "zero": "value set to zero", "mean": "value set to the mean"}
Entry = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Code:
    """Text of a token, to be shown letter by letter."""

    text: str


Cell = tuple[str | Code, ...]  # pieces that stand one after the other


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of the card."""

    title: str
    sentence: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def sections(card: Entry) -> list[Section]:
    """The four parts, in order."""
    return [_where(card), _how(card), _what(card), _cost(card)]


def summary(card: Entry) -> str:
    """The card in two sentences."""
    where, how, cost = card["where"], card["how"], card["cost"]
    moving = how["shares"].get("moving") or {"value": None, "null": None}
    place = _main_place(where)
    first = f"{percent(where['sink_share']['value'])} of tokens are sinks{place}"
    if moving["value"] is not None:
        chance = "" if moving["null"] is None else f" ({percent(moving['null'])} under the null)"
        first += f"; {percent(moving['value'])} of their tracks move{chance}"
    top = min(cost["tops"], default=None)
    hidden = _find(cost, "sinks", top, "mask")
    if hidden is None:
        return f"{first}."
    if (solved := _too_few_solved(cost)) is not None:
        return (
            f"{first}. Untouched it solves {percent(solved)} of the problems, too few for a cost to show: see --text."
        )
    unit = " points" if cost["measure"] == "accuracy" else " nats a token"
    second = f"Hiding the top {plural(top, 'sink')} of every head costs {_gap(hidden['cost'], cost)}{unit}"
    random = _find(cost, "random", top, "mask")
    second += "" if random is None else f", as many random keys {_gap(random['cost'], cost)}"
    reading = card["what"]["value_effect"]["reading"]
    return f"{first}. {second}." + (f" Reading: {reading}." if reading else "")


def warning(card: Entry) -> str:
    """What is to be known before the summary is read: too few units behind it; empty where there are enough."""
    behind = {"prompt": card["where"]["prompts"], card["cost"]["unit"]: card["cost"]["n"]}
    few = [plural(units, name) for name, units in behind.items() if units < FEW]
    if not few:
        return ""
    return f"Only {' and '.join(few)}: below {FEW} the numbers of this card are a sketch, and its intervals too narrow."


def _main_place(where: Entry) -> str:
    rows = [row for row in where["classes"] if row["share"]]
    first = where["first"]["share"]["value"]
    if not rows:
        return ""
    main = max(rows, key=lambda row: row["share"])
    if first is not None and first > main["share"]:
        return f", {percent(first)} of them on position 0"
    return f", {percent(main['share'])} of them on tokens of class {main['name']}"


def _where(card: Entry) -> Section:
    where = card["where"]
    first, masses = where["first"], [one for one in where["layers"] if one["mass"]["value"] is not None]
    rows: list[Sequence[Cell]] = [
        _row(f"tokens that are sinks ({where['metric']} {where['epsilon']:g})", shares(where["sink_share"])),
        _row("attention that they take", shares(where["absorbed"])),
        _row("heads with a sink in half of the steps", shares(where["heads_with_sink"])),
    ]
    if masses:
        top = max(masses, key=lambda one: one["mass"]["value"])
        rows.append(_row(f"mass of a head's main sink, layer {top['layer']}, the strongest", shares(top["mass"])))
    label: Cell = (
        ("sinks on position 0",) if first["token"] is None else ("sinks on position 0: ", code(first["token"]))
    )
    bos = {True: ", bos", False: ", not bos", None: ""}[first["is_bos"]]
    rows.append(((*label, bos), (shares(first["share"]),), (percent(first["base"]),)))
    classes = sorted((row for row in where["classes"] if row["sinks"]), key=lambda row: -row["sinks"])
    rows += [_row(f"on class {row['name']}", shares(row, "share"), percent(row["base"])) for row in classes[:LISTED]]
    rows += [
        (("on token ", code(row["name"])), (shares(row, "share"),), (percent(row["base"]),))
        for row in where["tokens"][:LISTED]
    ]
    known = {name: one for name, one in where["explained"].items() if one is not None and one["value"] is not None}
    rows += [_row(f"sink status explained by {name} alone", shares(one)) for name, one in known.items()]
    return Section(
        title="Where the sinks are",
        sentence=f"{where['sinks']:,} sinks among {where['cells']:,} (step, layer, head, token), over "
        f"{plural(where['prompts'], 'prompt')}.{_few(where['prompts'])}",
        columns=("", "share (95 %)", "of all tokens"),
        rows=rows,
    )


def _how(card: Entry) -> Section:
    how = card["how"]
    life, wanted = how["lifetimes"]["tracks"], ("static", "flicker", "split", "moving")
    rows = [_row(name, shares(how["shares"][name]), percent(how["shares"][name]["null"])) for name in wanted]
    rows += [
        _row(f"of these {name}", shares(share), percent(share["null"]))
        for name, share in how["shares"].items()
        if name not in (*wanted, "right_minus_left") and share["value"]
    ]
    ends = {name: life[f"median_{name}" if name != "value" else "median"] for name in ("value", "low", "high")}
    rows.append(_row("median life, in steps", "beyond the trace" if ends["value"] is None else _lives(ends, life["n"])))
    censored = f"{life['censored']} of {life['lives']} lives outlast the trace; Kaplan-Meier."
    inert = " Attention is summed over all queries so far, so a sink can hardly go." if card["model"]["causal"] else ""
    return Section(
        title="How they move",
        sentence=f"{plural(how['tracks'], 'track')}. The null shifts them in time and applies the same rule. "
        f"{censored}{inert}",
        columns=("", "share of tracks (95 %)", "under the null"),
        rows=rows,
    )


def _what(card: Entry) -> Section:
    what, effect, cost = card["what"], card["what"]["value_effect"], card["cost"]
    rows = [
        _row("attention that sinks take of their row", shares(what["attention_share"])),
        _row(
            "contribution that they carry (attention x norm of the value behind W_o)",
            shares(what["contribution_share"]),
        ),
        _row("norm of the value behind W_o", numbers(what["output_ratio"]), "1"),
        _row("effective rank of what a head writes", numbers(what["rank_with_sink"]), numbers(what["rank_without"])),
        _row(f"heads, of {what['heads']}", _verdicts(what["verdicts"])),
    ]
    for act, one in effect["acts"].items():
        less = "" if one["less_than_mask"] is None else _gap(one["less_than_mask"], cost, signed=True)
        label = f"top {plural(effect['top'], 'sink')}, {ACTS[act]}: cost"
        rows.append(_row(label, _gap(one["cost"], cost), "" if not less else f"saves {less} over minus infinity"))
    reading = effect["reading"]
    said = "Not measured." if reading is None else f"Reading: {reading}: {WORDS[reading]}."
    return Section(
        title="What they do",
        sentence=said,
        columns=("", "sinks (95 %)", "other tokens or heads"),
        rows=[row for row in rows if row[1] != ("",)],
    )


def _verdicts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _cost(card: Entry) -> Section:
    cost = card["cost"]
    rows = [
        (
            (_treated(one),),
            (shares(one["value"]) if cost["measure"] == "accuracy" else numbers(one["value"], digits=3),),
            ("" if one["cost"] is None else _gap(one["cost"], cost),),
            ("" if one["more_than_random"] is None else _gap(one["more_than_random"], cost),),
            ("" if one["dose"] is None else f"{one['dose']:.2f}",),
        )
        for one in cost["cells"]
        if one["act"] == "mask"
    ]
    return Section(
        title="What removing them costs",
        sentence=f"{_measured(card)} Cells of different dose differ in strength before they differ in kind."
        f"{_few(cost['n'])}{_floor(cost)}",
        columns=(
            "hidden in every layer and head",
            f"{SCORES[cost['measure']]} (95 %)",
            "cost",
            "beyond random",
            "dose",
        ),
        rows=rows,
    )


def _measured(card: Entry) -> str:
    cost, said = card["cost"], card["settings"]["measured_on"]
    units = plural(cost["n"], cost["unit"])
    unit = {"accuracy": "costs in points", "nll": "nats a token", "elbo": "nats a token, a bound"}[cost["measure"]]
    return f"{units} of {said}, the same in all cells; {unit}{by_masks(cost, card['settings'])}."


def _floor(cost: Entry) -> str:
    return " Unmasked the model solves so few that a cost says little." if _too_few_solved(cost) is not None else ""


def _too_few_solved(cost: Entry) -> float | None:
    """The share solved unmasked, where it leaves nothing to lose."""
    unmasked = _find(cost, "none", None, "mask")
    if cost["measure"] != "accuracy" or unmasked is None or unmasked["value"]["value"] >= NOTHING_TO_LOSE:
        return None
    return float(unmasked["value"]["value"])


def _treated(one: Entry) -> str:
    if one["choose"] == "none":
        return "nothing"
    draws = f", {one['draws']} draws" if one["draws"] > 1 else ""
    names = {"sinks": f"top {plural(one['top'], 'sink')}", "random": f"{plural(one['top'], 'random key')}"}
    return names[one["choose"]] + draws


def _find(cost: Entry, choose: str, top: int | None, act: str) -> Entry | None:
    wanted = (choose, top, act)
    return next((one for one in cost["cells"] if (one["choose"], one["top"], one["act"]) == wanted), None)


def _few(units: int) -> str:
    if units == 1:
        return " One unit: no intervals."
    return " With so few the intervals are too narrow." if units < FEW else ""


def _row(label: str, value: str, beside: str = "") -> tuple[Cell, Cell, Cell]:
    return (label,), (value,), (beside,)


def code(text: str) -> Code:
    return Code(text=display(text))


def _gap(interval: Entry, cost: Entry, *, signed: bool = False) -> str:
    """A difference of two cells: points of accuracy, or nats."""
    scale, digits = (100, 1) if cost["measure"] == "accuracy" else (1, 3)
    scaled = {
        name: None if interval[name] is None else scale * interval[name] + 0.0 for name in ("value", "low", "high")
    }
    return ("+" if signed and (scaled["value"] or 0) > 0 else "") + numbers(scaled, digits=digits)


def _lives(ends: Entry, n: int) -> str:
    """A median with an end that may lie beyond the trace."""
    if n < 2:
        return f"{ends['value']:g}"
    low, high = ("beyond the trace" if ends[name] is None else f"{ends[name]:g}" for name in ("low", "high"))
    return f"{ends['value']:g} ({low} to {high})"
