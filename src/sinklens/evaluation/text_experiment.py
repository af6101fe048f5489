"""What masking costs a causal model on English text: cells, rows on disk, and what they come to.

    python -m sinklens.evaluation.text_experiment smollm2-135m --text FILE --chunks 100 --length 256 --to DIR

    DIR/experiment.json     what decides the rows: model, text, length, seed
    DIR/rows/*.parquet      one row a chunk, cell and draw; a file a chunk and stage, written whole
    DIR/timings/*.parquet   seconds of each of them
    DIR/result.json         the cells (text_result.py), anew after every run

What is there is not run again, so a run that was broken off goes on where it was, and more chunks or cells can be asked
for later.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor

from sinklens.errors import UsageError
from sinklens.evaluation.conditions import Condition
from sinklens.evaluation.forced import read_prompt
from sinklens.evaluation.perplexity import FIRST, chunk_nll, read_chunks
from sinklens.evaluation.text_result import read_rows, write_result
from sinklens.evaluation.texts import cut_chunks, read_text
from sinklens.files import write_json, written_whole

DRAWS = 5
BLOCK = 25  # chunks


@dataclass(frozen=True, kw_only=True)
class TextCell:
    """A condition, and how it meets a text (forced.py)."""

    condition: Condition
    ranked: str = "prompt"
    clean: int | None = None  # tokens before the mask begins; None: all that are not scored

    @property
    def columns(self) -> dict[str, Any]:
        return {"condition": str(self.condition), "ranked": self.ranked, "clean": self.clean}


def standard_cells(*, tops: Sequence[int] = (1, 5, 10), control: int = 5, draws: int = DRAWS) -> list[list[TextCell]]:
    """In stages, the most telling first: position 0, the sinks of every head and the rule of generation; random keys,
    draw by draw; one set of keys for the whole model; the rest."""
    both = ("cached", "recomputed")

    def sinks(scope: str) -> list[TextCell]:
        pairs = product(tops, both)
        return [_cell(choose="sinks", top=top, keys=keys, scope=scope) for top, keys in pairs]

    def random(scope: str) -> list[list[TextCell]]:
        settings = {"choose": "random", "top": control, "scope": scope}
        return [[_cell(**settings, keys=keys, draw=draw) for keys in both] for draw in range(draws)]

    first = [_cell(choose="first", top=1, keys=keys) for keys in both]
    clean, whole = (
        [
            TextCell(condition=Condition(choose="sinks", top=top, keys="cached"), ranked="steps", clean=end)
            for top in tops
        ]
        for end in (None, 1)
    )
    by_last = [_cell(choose="sinks", top=tops[0], keys=keys, scope="head", rank_by="last_row") for keys in both]
    return [
        [_cell(), *first, *sinks("head"), clean[0], whole[0]],
        by_last,
        *random("head"),
        [*sinks("model"), _cell(choose="first", top=1, keys="cached", act="zero"), *clean[1:]],
        *random("model"),
        whole[1:],
    ]


def _cell(**settings: Any) -> TextCell:
    return TextCell(condition=Condition(**settings))


def text_experiment(
    model: Any,
    chunks: Int[Tensor, "chunk position"],
    stages: Sequence[Sequence[TextCell]],
    *,
    to: Path,
    identity: dict[str, Any],
    first: int = FIRST,
    seed: int = 0,
) -> Iterator[tuple[int, int]]:
    """Run what is not on disk yet, block by block of chunks and in a block stage by stage, so that a run that is broken
    off has whole blocks; yields files written and files to write.

    identity: what decides the rows beside the arguments here, as JSON: the model's name, the text's hash.
    """
    told = {**identity, "length": int(chunks.shape[1]), "first": first, "seed": seed, "dtype": str(_dtype(model))}
    ids = read_chunks(model, chunks, first=first, clean=min(cell.clean or first for cells in stages for cell in cells))
    _claim(to, told)
    known = {(row["chunk"], row["condition"], row["ranked"], row["clean"]) for row in read_rows(to)}
    work = []
    for start, (stage, cells) in product(range(0, len(ids), BLOCK), enumerate(stages)):
        for number in range(start, min(start + BLOCK, len(ids))):
            left = [cell for cell in cells if (number, *cell.columns.values()) not in known]
            work += [(f"{stage:02d}-{number:06d}", number, left)] if left else []
    for done, (place, number, left) in enumerate(work, start=1):
        rows, timings = _run_chunk(model, ids[number][None], left, number=number, first=first, seed=seed)
        name = f"{place}-{time.time_ns()}"  # another set of cells has other stages
        _write(timings, to / "timings" / f"{name}.parquet")
        _write(rows, to / "rows" / f"{name}.parquet")
        yield done, len(work)
    write_result(to)


def _run_chunk(
    model: Any, ids: Tensor, cells: Sequence[TextCell], *, number: int, first: int, seed: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows and timings of one chunk; a prompt is run once for all cells that begin with it."""
    prompts = {end: read_prompt(model, ids, end=end) for end in {cell.clean or first for cell in cells}}
    rows, timings = [], []
    for cell in cells:
        begun = time.perf_counter()
        prompt, condition = prompts[cell.clean or first], cell.condition
        found = chunk_nll(model, prompt, condition, first=first, number=number, seed=seed, ranked=cell.ranked)
        place = {"chunk": number, **cell.columns}
        settings = {name: value for name, value in condition.as_dict().items() if name in _SHOWN}
        rows.append(
            {
                **place, **settings, "nll": found.nll, "tokens": len(found.losses),
                "dose": found.dose, "removed": found.removed, "keys_removed": found.keys_removed,
            }
        )  # fmt: skip
        timings.append({**place, "seconds": time.perf_counter() - begun})
    return rows, timings


_SHOWN = ("choose", "top", "epsilon", "act", "scope", "keys", "draw")


def _schema(name: str) -> Any:
    import pyarrow as pa

    place = [("chunk", pa.int64()), ("condition", pa.string()), ("ranked", pa.string()), ("clean", pa.int64())]
    if name == "timings":
        return pa.schema([*place, ("seconds", pa.float64())])
    kinds = {"top": pa.int64(), "epsilon": pa.float64(), "draw": pa.int64()}
    shown = [(setting, kinds.get(setting, pa.string())) for setting in _SHOWN]
    numbers = [(number, pa.float64()) for number in ("dose", "removed", "keys_removed")]
    return pa.schema([*place, *shown, ("nll", pa.float64()), ("tokens", pa.int64()), *numbers])


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    """A Parquet file that is there as a whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with written_whole(path) as temporary:
        pq.write_table(pa.Table.from_pylist(rows, schema=_schema(path.parent.name)), temporary)


def _claim(to: Path, told: dict[str, Any]) -> None:
    """Write down what the rows of this folder belong to, or refuse to mix them with others."""
    path = to / "experiment.json"
    if path.is_file():
        there = json.loads(path.read_text("utf-8"))
        for name, value in told.items():
            if there.get(name) != value:
                raise UsageError(
                    f"{to} holds an experiment with {name} {there.get(name)!r}, not {value!r}; choose another folder"
                )
        return
    write_json(path, told)


def _dtype(model: Any) -> Any:
    return next(model.parameters()).dtype


def main() -> None:
    from sinklens.models.load import load

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a causal model with a tokenizer: a name, folder or hub id")
    parser.add_argument("--text", type=Path, required=True, help="English text, pages separated by form feeds")
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--length", type=int, default=256, help="tokens a chunk")
    parser.add_argument("--first", type=int, default=FIRST, help="where scored tokens begin")
    parser.add_argument("--draws", type=int, default=DRAWS, help="of random controls")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--to", type=Path, required=True, help="folder of the experiment")
    chosen = parser.parse_args()
    text, digest = read_text(chosen.text)
    model = load(chosen.model, device=chosen.device)
    chunks = cut_chunks(model.tokenizer, text, chunks=chosen.chunks, length=chosen.length)
    identity = {"model": chosen.model, "text": digest}
    stages, begun = standard_cells(draws=chosen.draws), time.monotonic()
    for done, of in text_experiment(
        model, chunks, stages, to=chosen.to, identity=identity, first=chosen.first, seed=chosen.seed
    ):
        left = (time.monotonic() - begun) / done * (of - done)
        print(f"{done} of {of}, {left / 60:.0f} minutes left", file=sys.stderr, flush=True)
    print(chosen.to / "result.json")


if __name__ == "__main__":
    main()
