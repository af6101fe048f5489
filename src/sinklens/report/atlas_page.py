"""The page of an atlas, atlas.md: what holds, the figure, and the numbers behind it."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sinklens.files import written_whole
from sinklens.sinks.alr import STAKE

PAGE, FIGURE = "atlas.md", "atlas"
HOLDS = {True: "yes", False: "no", None: "not decided"}
Entry = Mapping[str, Any]


def write_atlas(document: Entry, folder: Path) -> list[Path]:
    """The figure and the page, in `folder`."""
    from sinklens.report.atlas import draw_atlas
    from sinklens.report.key_norms import draw_key_norms

    drawn = (draw_key_norms if document["causal"] else draw_atlas)(document, folder, name=FIGURE)
    with written_whole(folder / PAGE) as temporary:
        temporary.write_text(page(document), "utf-8")
    return [folder / PAGE, *drawn]


def page(document: Entry) -> str:
    """Markdown."""
    parts = [f"# Atlas of {document['decides']['model']['name']}", _about(document), findings(document)]
    parts += [f"![figure]({FIGURE}.png)", *(_causal(document) if document["causal"] else _diffusion(document))]
    return "\n\n".join(parts) + "\n"


def findings(document: Entry) -> str:
    """What was asked, whether it holds here, and by how much."""
    rows = ((one["claim"], HOLDS[one["holds"]], one["says"]) for one in document["findings"])
    return table(("claim", "holds", "measured"), rows)


def _about(document: Entry) -> str:
    model, told, units = document["decides"]["model"], document["told"], document["units"]
    shape = f"{model['layers']} layers of {model['heads']} heads ({model['kv_heads']} kv heads), {model['dtype']}"
    what = "chunk" if document["causal"] else "prompt"
    lines = [f"{shape}. {units} {what}{'' if units == 1 else 's'} from {told['source']}; {told['setting']}."]
    if units < 2:
        lines.append("**One unit: no interval, and nothing is decided.**")
    elif units < 10:
        lines.append(f"**{units} units only: intervals are too narrow.**")
    lines.append(f"Intervals: 95 %, over {what}s. Made by `{told['command']}`.")
    return " ".join(lines)


def _causal(document: Entry) -> Iterable[str]:
    heads = document["heads"]
    flat, flat_rest = (sum(one[name] is None for one in heads) for name in ("ratio", "ratio_rest"))
    yield "## Layers"
    columns = ("alr", "ratio", "ratio_rest", "kept", "kept_rest", "next", "next_rest", "received", "value")
    names = ("layer", "ALR", "ALR / expected", "without 0", "kept at 50 %", "without 0", "Spearman, next query",
             "without 0", "Spearman, received", "value norm, received")  # fmt: skip
    yield table(names, ([one["layer"], *(interval(one[name]) for name in columns)] for one in document["layers"]))
    yield (
        "ALR: attention that is lost by dropping the largest norms first, above the oracle's, summed over all budgets; "
        "expected: of a random order (0 oracle, 1 chance). Kept: share of the next query's attention on the half of "
        "smallest norm (chance 0.5). Spearman: of key norm with the next query's attention, and of key and value norm "
        f"with what the chunk paid. In {flat} of {len(heads)} heads ({flat_rest} without position 0) attention is too "
        f"flat for the ratio: a random order loses less than {STAKE} of it above the oracle."
    )
    yield "## Entries of cached keys set to 0"
    edits = ("edit", "attention moved", "change of loss (nats)", "share of squared length removed")
    rows = ([one["edit"], *(interval(one[name]) for name in ("change", "nll_change", "removed"))]
            for one in document["peaks"])  # fmt: skip
    yield table(edits, rows)
    peaks = document["decides"]["peaks"]
    yield (
        f"peaks: the {peaks['dims']} largest entries of the {peaks['keys']} keys of smallest norm, in every layer and "
        f"kv head; random: as many other entries of these keys; elsewhere: the largest entries of as many other keys "
        f"({peaks['draws']} draws each)."
    )


def _diffusion(document: Entry) -> Iterable[str]:
    yield "## Kinds of tokens"
    names = ("tokens", "norm", "Spearman", "chance", "heads below 0", "heads above 0", "half of smallest norm gets")
    yield table(names, (_kind(one) for one in document["kinds"]))
    yield (
        "Spearman: of a token's norm with the attention it receives, among the tokens of its kind, mean over steps, "
        "heads and layers. Chance: 95 % of random orders of these tokens. Heads: those whose interval lies on one side "
        "of 0. The last column: of the attention that goes to the kind (chance 0.5)."
    )
    for norm in ("key", "value"):
        entries = [one for one in document["kinds"] if one["norm"] == norm]
        yield f"## {norm.capitalize()} norm by layer"
        layers = range(len(entries[0]["layers"]))
        rows = ([layer, *(interval(one["layers"][layer]) for one in entries)] for layer in layers)
        yield table(("layer", *(one["kind"] for one in entries)), rows)


def _kind(one: Entry) -> Sequence[Any]:
    null, known = one["null"], one["heads_known"]
    chance = "" if null["low"] is None else f"{null['low']:.3f} to {null['high']:.3f}"
    below, above = (f"{one[name]} of {known}" for name in ("heads_below", "heads_above"))
    return one["kind"], one["norm"], interval(one["mean"]), chance, below, above, interval(one["kept"])


def interval(entry: Entry) -> str:
    """0.123 [0.100, 0.150]; large numbers with fewer digits."""
    if entry["value"] is None:
        return ""
    digits = 1 if abs(entry["value"]) >= 10 else 3
    if entry["low"] is None:
        return f"{entry['value']:.{digits}f}"
    return f"{entry['value']:.{digits}f} [{entry['low']:.{digits}f}, {entry['high']:.{digits}f}]"


def table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)
