"""The cards of the embedded models, written from what was measured; nothing in them is typed by hand.

    python -m sinklens.training.cards

writes README.md into every folder of the zoo, docs/data-card.md, and the tables of docs/embedded-models.md. It reads
card.json (`python -m sinklens.training.evaluate`), training.json and log.jsonl (`sinklens train`) beside the weights,
and corpus_card.json (`python -m sinklens.training.prepare`). Needs no torch.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sinklens.errors import choose
from sinklens.files import written_whole
from sinklens.models.catalog import EMBEDDED, ZOO
from sinklens.sinks.intervals import wilson
from sinklens.training.log import FIRST_STAGE, read_log, read_stages

CORPUS_CARD = Path(__file__).parent / "corpus_card.json"
DOCS = Path(__file__).parents[3] / "docs"
BEGIN, END = "<!-- written by sinklens.training.cards -->", "<!-- end -->"
KINDS = {
    "llama": "An autoregressive language model in Llama's layout; plain transformers loads it too",
    "llada": "A masked diffusion language model in LLaDA's layout, trained from scratch",
    "dream": "A masked diffusion language model in Dream's layout (p predicts p + 1), adapted from tiny-llama",
}
SPLITS = {"test": "unseen problems", "templates": "unseen wordings", "numbers": "unseen numbers"}


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def read(name: str) -> dict[str, Any]:
    """All that is stored about one embedded model."""
    folder = ZOO / EMBEDDED[choose("embedded model", name, tuple(EMBEDDED))]
    found: dict[str, Any] = {
        part: json.loads((folder / f"{part}.json").read_text("utf-8")) for part in ("card", "training", "config")
    }
    return {
        **found,
        "log": read_stages(folder),
        "first_stage": read_log(folder, FIRST_STAGE),
        "bytes": (folder / "model.safetensors").stat().st_size,
    }


def task_rows(card: dict[str, Any]) -> list[list[str]]:
    """One row a task, one cell a split: the share answered right, with its Wilson interval."""
    cells = {(row["task"], row["split"]): row for row in card["tasks"]}
    names = list(dict.fromkeys(row["task"] for row in card["tasks"]))
    return [[name, *(_share(cells[name, split]) for split in SPLITS)] for name in names]


def _share(row: dict[str, Any]) -> str:
    found = wilson(row["right"], row["problems"])
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}], n = {found.n}"


def sink_rows(card: dict[str, Any]) -> list[list[str]]:
    """What was measured of sinks, one line a measure."""
    forward = card["sinks"]["forward"]
    if "text" in forward:
        return [
            [
                f"position 0, 64 tokens, {where}",
                f"{forward[key]['upper_heads_above_0.3']:.2f} of the upper-half heads give it 0.3 or more; "
                f"the largest share is {forward[key]['largest']:.2f}",
            ]
            for key, where in (("text", "held-out text"), ("random", "random tokens"))
        ]
    rows = []
    generations = card["sinks"]["generation"]["prompts"]
    for key, where in (
        ("forward", "192 tokens, half written"),
        ("generation", f"192 tokens, over the 128 steps of {generations} generations"),
    ):
        found = card["sinks"][key]
        tokens = ", ".join(
            f"<code>{_visible(token)}</code> {share:.2f}" for token, share in list(found["sink_tokens"].items())[:5]
        )
        rows.append(
            [
                where,
                f"{found['sink_share']:.2%} of tokens are sinks at epsilon 3; in "
                f"{found['upper_heads_above_0.1']:.2f} of the upper-half heads the top sink receives 0.1 or more of "
                f"all attention, {found['largest']:.2f} at most; most often under sinks: {tokens}",
            ]
        )
    return rows


def _visible(token: str) -> str:
    """A token as Markdown can show it in a table."""
    escaped = token.replace("&", "&amp;").replace("<", "&lt;")
    return escaped.replace("\n", "\\n").replace(" ", "␣").replace("|", "&#124;").replace("`", "&#96;")


def training_rows(found: dict[str, Any]) -> list[list[str]]:
    recipe, log, mark = found["training"]["recipe"], found["log"], found["training"]["fingerprint"]
    data = recipe["data"]
    tokens, steps = log[-1]["tokens"], log[-1]["step"]
    seconds = sum(
        (entry["tokens"] - before) / entry["tokens_per_second"]
        for before, entry in zip([0, *(entry["tokens"] for entry in log)], log, strict=False)
    )
    text = data["context"] * data["text_rows"]
    share = text / (text + data["task_context"] * data["task_rows"])
    return [
        ["tokens", f"{tokens / 1e6:,.0f} M in {steps:,} steps, {share:.0%} natural text, the rest tasks"],
        ["optimizer", f"{recipe['optimizer']['name']}, weight decay {recipe['optimizer']['weight_decay']}"],
        ["start", _start(found)],
        ["time", f"{seconds / 60:.0f} minutes on one H200 that other runs shared, measuring aside"],
        [
            "recipe",
            f"`sinklens train {recipe['name']}`, seed {recipe['seed']}, fingerprint `{mark}`",
        ],
    ]


def _start(found: dict[str, Any]) -> str:
    recipe, first = found["training"]["recipe"], found["first_stage"]
    if first:
        return f"random weights; the first {first[-1]['tokens'] / 1e6:,.0f} M tokens by `{recipe['name']}-1`"
    return str(recipe.get("start", "random weights"))


def model_card(name: str) -> str:
    """The README.md of a checkpoint."""
    found = read(name)
    shape = found["training"]["recipe"]["shape"]
    parts = [
        "---\nlicense: apache-2.0\nlibrary_name: sinklens\n---",
        f"# {name}",
        f"{KINDS[found['training']['recipe']['family']]}: {shape['layers']} layers of width {shape['width']}, "
        f"{shape['heads']} heads, {shape['vocab_size']} tokens, {found['bytes'] / 1e6:.1f} MB in bfloat16. "
        "Made to show attention sinks on a laptop; it was trained on arithmetic stories, one-line programs, pass keys "
        "and technical documentation, and on nothing else.",
        f'```python\nimport sinklens as sl\n\nmodel = sl.load("{name}")\n```',
        "## Training",
        table(["", ""], training_rows(found)),
        "Data: docs/data-card.md of sinklens.",
        "## Tasks",
        "Share answered right, greedy, with its 95 % Wilson interval "
        f"(`python -m sinklens.training.evaluate {name} --to card.json`):",
        table(["task", *SPLITS.values()], task_rows(found["card"])),
        "## Sinks",
        table(["measured on", ""], sink_rows(found["card"])),
        "## Limits",
        "English only. Not a chat model: prompts are those of `sinklens.tasks`. Prose that it writes is fluent for a "
        "few words and means nothing. Rotary positions were trained up to "
        f"{found['training']['recipe']['data']['context']} tokens. What it says about attention in models of its size "
        "need not hold for larger ones.",
    ]
    return "\n\n".join(parts) + "\n"


def data_card() -> str:
    """docs/data-card.md."""
    card = json.loads(CORPUS_CARD.read_text("utf-8"))

    def sizes(part: str, head: str) -> str:
        rows = ([name, f"{row['bytes'] / 1e6:.1f}", f"{row['documents']:,}"] for name, row in card[part].items())
        return table([head, "MB", "documents"], rows)

    packages = table(
        ["package", "version", "licence", "MB"],
        ([name, row["version"], row["licence"], f"{row['bytes'] / 1e6:.2f}"] for name, row in card["packages"].items()),
    )
    parts = [
        "# Data card of the embedded models",
        f"Natural text: {card['bytes'] / 1e6:.0f} MB in {card['documents']:,} documents from {len(card['packages'])} "
        "open-source packages: documentation pages, docstrings and long comments, and source code. Only packages under "
        "a permissive licence, checked against their own metadata; single files that name another one are left out. "
        "Paragraphs that were seen before are dropped, one document in a hundred is held out by a hash of its text. "
        "The list with versions and hashes is `src/sinklens/training/sources.toml`; "
        "`python -m sinklens.training.prepare --to DIR` fetches the packages and builds the same files again.",
        "Generated text: the training splits of `word_problems`, `small_programs` and `passkey` "
        "([tasks.md](tasks.md)). One document in seven of the text is a pass-key problem.",
        "Tokens: byte-level BPE with 4096 entries, learned from equal parts of both; digits are single.",
        sizes("kinds", "kind"),
        sizes("licences", "licence"),
        sizes("parts", "part"),
        "Personal data: what authors of packages wrote about themselves in their documentation, such as names in "
        "acknowledgements. Nothing was filtered for it.",
        packages,
    ]
    return "\n\n".join(parts) + "\n"


def comparison() -> str:
    """The tables of docs/embedded-models.md."""
    found = {name: read(name) for name in EMBEDDED}
    tasks = [[name, row[0], *row[1:]] for name, model in found.items() for row in task_rows(model["card"])]
    sinks = [[name, *row] for name, model in found.items() for row in sink_rows(model["card"])]
    training = [[name, *row] for name, model in found.items() for row in training_rows(model)]
    return "\n\n".join(
        [
            table(["model", "task", *SPLITS.values()], tasks),
            table(["model", "measured on", "sinks"], sinks),
            table(["model", "training", ""], training),
        ]
    )


def with_block(text: str, block: str) -> str:
    """A page with what stands between the marks replaced."""
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{block}\n\n{END}{rest.partition(END)[2]}"


def pages() -> dict[Path, str]:
    """Every file that is written, and what is in it."""
    compared = DOCS / "embedded-models.md"
    return {
        **{ZOO / EMBEDDED[name] / "README.md": model_card(name) for name in EMBEDDED},
        DOCS / "data-card.md": data_card(),
        compared: with_block(compared.read_text("utf-8"), comparison()),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m sinklens.training.cards",
        description=f"Write the cards of {', '.join(EMBEDDED)} from what is stored beside their weights.",
        epilog="The card of any other model, a folder among them: sinklens card MODEL.",
    )
    _, others = parser.parse_known_args(arguments)
    if others:
        parser.error(
            f"{others[0]}: nothing is taken; this writes the cards of {', '.join(EMBEDDED)}, whose data it describes. "
            "For another model: sinklens card MODEL"
        )
    for path, text in pages().items():
        with written_whole(path) as temporary:
            temporary.write_text(text, "utf-8")
        print(path)


if __name__ == "__main__":
    main()
