"""The page of results on key norms and caches, from the folders of `sinklens compress`.

    python -m sinklens.report.key_norm_page DIR... --blocks FILE --to docs/results/key-norm.md --preface FILE

Tables and figures come from the folders alone; what it all means is written by hand, in the preface: a file of its own,
or the page as it is, of which everything before the mark is kept. Beside the page, in a folder of its name, stand for
each DIR a folder with its figures and result.json: these can be given as DIR in place of the rows.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError
from sinklens.evaluation.compress_result import summarise
from sinklens.files import write_json, written_whole
from sinklens.report import key_norm_tables as tables
from sinklens.report.compress import FIGURES, draw, table_markdown
from sinklens.report.key_norm_tables import Result
from sinklens.report.results_page import place_pictures, words_above

TITLE = "# Caches cut by key norm\n"
MARK = "<!-- written by sinklens.report.key_norm_page from here on -->"
RESULT = "result.json"
CAPTIONS = {
    "figure_compression": "Scores over the share of entries dropped, layers 0 and 1 whole, with 95 % intervals.",
    "figure_skips": "The same for the order low, by the layers that stay whole.",
    "figure_needle": "Words of the needle's sentence that were found, by length and depth.",
    "figure_language": "Log of the cumulative perplexity and tokens foreseen so far, against length.",
}
ORDERS = (
    "Scores are shares of right answers (passkey) or of words found (needle); on text they are nats a token, where "
    "less is better. The verdicts are those of paired differences with 95 % intervals over problems: yes, no, or open "
    "where the interval holds 0."
)
BLOCKS = (
    "`benchmarks/block_cache.py`: diffusion models, the prompt held between refreshes; *keep k order*: of the prompt "
    "each kv head holds k entries. [What it does](../block-cache.md)."
)


def write_page(
    folders: Sequence[Path], to: Path, *, preface: Path | None = None, blocks: Path | None = None
) -> list[Path]:
    """Write the page, figures and results; the paths that were written, the page first."""
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        raise UsageError(f"two folders have the same name ({', '.join(names)}); rename one: figures are named after it")
    results = {name: read_result(folder) for name, folder in zip(names, folders, strict=True)}
    written, shown = [to], {}
    for name, result in results.items():
        beside = to.with_suffix("") / name
        placed = place_pictures(partial(draw, result), beside, names=FIGURES)
        write_json(beside / RESULT, result)
        written += [*placed, beside / RESULT]
        shown[name] = {path.stem: path.relative_to(to.parent).as_posix() for path in placed}
    head = words_above(MARK, preface, title=TITLE)
    body = "\n".join(sections(results, shown, blocks=[] if blocks is None else read_blocks(blocks)))
    with written_whole(to) as temporary:
        temporary.write_text(f"{head.rstrip()}\n\n{MARK}\n\n{body.rstrip()}\n", "utf-8")
    return written


def read_result(folder: Path) -> dict[str, Any]:
    """From the rows where they are there, else result.json; without what the page has no use for."""
    path = folder / RESULT
    if (folder / "rows").is_dir() or (folder / "texts").is_dir():
        found = summarise(folder)
    elif path.is_file():
        found = json.loads(path.read_text("utf-8"))
    else:
        raise UsageError(
            f"{folder} has neither rows nor {RESULT}; expected a folder that `sinklens compress --to` wrote"
        )
    return {name: value for name, value in found.items() if name != "timings"}


def read_blocks(path: Path) -> list[dict[str, Any]]:
    """The rows of the block-cache benchmark: JSON lines, the first of which is about the run."""
    return [row for row in map(json.loads, path.read_text("utf-8").splitlines()) if "way" in row]


def sections(
    results: Mapping[str, Result], figures: Mapping[str, Mapping[str, str]], *, blocks: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    yield "## Low above random above high\n"
    yield f"{ORDERS}\n"
    yield tables.order_table(results)
    yield tables.verdict_table(results)
    for name, result in results.items():
        yield f"## {name}\n"
        yield from _figures(figures[name], ("figure_compression", "figure_language", "figure_needle"))
        for place, cells, loss in tables.places(result):
            yield tables.baseline_table(place, cells, loss=loss)
        yield tables.needle_table(result)
        skips = tables.skip_table(result)
        if skips:
            yield "### Layers that stay whole\n"
            yield skips
            yield from _figures(figures[name], ("figure_skips",))
        yield f"<details><summary>Every cell</summary>\n\n{_deeper(table_markdown(result))}\n</details>\n"
    if blocks:
        yield "## Block caches of diffusion models\n"
        yield f"{BLOCKS}\n"
        yield tables.block_table(blocks)


def _deeper(text: str) -> str:
    """Headings of a page of its own, two levels down."""
    return "\n".join(f"##{line}" if line.startswith("#") else line for line in text.splitlines()) + "\n"


def _figures(paths: Mapping[str, str], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if name in paths:
            yield f"![{CAPTIONS[name]}]({paths[name]})\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folders of `sinklens compress`")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE", help="the page, such as docs/results/x.md")
    parser.add_argument("--preface", type=Path, metavar="FILE", help="Markdown to put before the tables")
    parser.add_argument("--blocks", type=Path, metavar="FILE", help="rows of benchmarks/block_cache.py --to FILE")
    chosen = parser.parse_args()
    for path in write_page(chosen.folders, chosen.to, preface=chosen.preface, blocks=chosen.blocks):
        print(path)


if __name__ == "__main__":
    main()
