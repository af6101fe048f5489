"""What a card measures beside its trace: every cell on problems of a task or, for a model that does none, on text.

    unmasked                          what the model does by itself
    k sinks, for each k               minus infinity, the family's own way
    k random keys, for each k         the control, in several draws
    the smallest k, zero and mean     the same sinks with their value alone taken

On text a causal model is scored exactly, token by token behind the first part of a chunk (`perplexity.py`), and a
diffusion model by its ELBO over the rest of a chunk (`likelihood.py`): nats a token, lower is better, and the two are
never to be compared. All cells share problems, chunks and masks; every chunk has masks of its own.

A batch of a cell, or a chunk with all of its cells, is one file; what is there is not done again.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError
from sinklens.evaluation.answering import Answering, Row
from sinklens.evaluation.conditions import Condition, mixed_seed
from sinklens.evaluation.elbo import DRAWS as ELBO_DRAWS
from sinklens.evaluation.experiment import Experiment, run_experiment
from sinklens.files import written_whole
from sinklens.recording.identity import short_name

TOPS = (1, 5, 10)
DRAWS = 5  # of random keys
ELBO_BATCH = 32  # masks a pass
Tell = Callable[[int, int, str, float | None], None]  # batches done, of how many, what runs now, seconds left

TEXT_ROW = {
    "model": "string",
    "condition": "string",
    "choose": "string",
    "top": "int64",
    "act": "string",
    "draw": "int64",
    "chunk": "int64",
    "nll": "float64",  # nats a token; of a diffusion model, its ELBO with the sign turned
    "error": "float64",  # Monte-Carlo, of an ELBO, nats a token; null: exact, or one mask
    "dose": "float64",
    "keys_removed": "float64",  # a head and query; null where it was not counted
}


def _silent(_done: int, _total: int, _doing: str, _left: float | None) -> None:
    """Nobody is told."""


def card_conditions(*, tops: Sequence[int] = TOPS, draws: int = DRAWS) -> list[Condition]:
    """The cells of a card; every draw of a random control is one.

    >>> [one.label for one in card_conditions(tops=[5], draws=1)]
    ['unmasked', '5 sinks', '5 sinks, zero value', '5 sinks, mean value', '5 random']
    """
    if not tops or draws < 1:
        raise UsageError(f"tops is {list(tops)} and draws is {draws}; expected numbers of keys, and at least one draw")
    least = min(tops)
    values = [Condition(choose="sinks", top=least, act=act) for act in ("zero", "mean")]
    return [
        Condition(),
        *(Condition(choose="sinks", top=top) for top in sorted(set(tops))),
        *values,
        *(Condition(choose="random", top=top, draw=draw) for top in sorted(set(tops)) for draw in range(draws)),
    ]


def answer_cells(
    model: Any, folder: Path, *, answering: Answering, conditions: Sequence[Condition], count: int, tell: Tell = _silent
) -> None:
    """Rows of the first `count` problems of a task in every cell, in the folder of an experiment (`experiment.py`)."""
    name = name_of(model)
    experiment = Experiment(
        models={name: model}, answerings=[answering], cells={name: list(conditions)}, problems=count
    )
    run_experiment(
        experiment,
        folder,
        progress=lambda at: tell(at.done, at.total, at.doing.condition.label, at.seconds_left),
    )


def name_of(model: Any) -> str:
    """What rows and cards call a model."""
    return short_name(model.spec.source) or str(model.spec.family)


@dataclass(frozen=True, kw_only=True, eq=False)
class Chunks:
    """Text as a model reads it."""

    ids: list[list[int]]  # each equally long, with a bos in front where the model has one
    sha256: str  # of the text
    first: int  # tokens that are read and not scored


def cut_text(model: Any, path: Path, *, count: int, length: int) -> Chunks:
    """The first `count` pieces of `length` tokens of a text file; half of each is context."""
    if model.tokenizer is None:
        raise UsageError(f"{model.spec.source} has no tokenizer; a text needs one")
    if length < 4 or count < 1:
        raise UsageError(f"{count} chunks of {length} tokens; expected at least one, of 4 tokens or more")
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the text of {path}: {error}; give a UTF-8 text file") from None
    front = [] if model.spec.bos_id is None else [model.spec.bos_id]
    ids = [int(one) for one in model.tokenizer.encode(text, add_special_tokens=False, verbose=False)]
    step = length - len(front)
    pieces = [[*front, *ids[start : start + step]] for start in range(0, len(ids) - step + 1, step)][:count]
    if len(pieces) < count:
        raise UsageError(
            f"{path} has {len(pieces)} chunks of {length} tokens, {count} were asked for; give a longer text, "
            "or ask for fewer"
        )
    return Chunks(ids=pieces, sha256=sha256(text.encode()).hexdigest(), first=length // 2)


def score_cells(
    model: Any,
    folder: Path,
    *,
    chunks: Chunks,
    conditions: Sequence[Condition],
    seed: int = 0,
    elbo_draws: int = ELBO_DRAWS,
    tell: Tell = _silent,
) -> None:
    """Rows of every chunk in every cell, one file a chunk. elbo_draws: masks of a chunk, for a diffusion model."""
    files = [folder / "rows" / f"chunk-{number:06d}.parquet" for number in range(len(chunks.ids))]
    todo = [number for number, path in enumerate(files) if not path.exists()]
    began, total = time.monotonic(), len(files) * len(conditions)
    for turn, number in enumerate(todo):
        left = (time.monotonic() - began) / turn * (len(todo) - turn) if turn else None
        rows = []
        if model.spec.causal:
            scored = _score_causal(model, chunks, number, conditions, seed)
        else:
            scored = _score_bound(model, chunks, number, conditions, seed, draws=elbo_draws)
        for index, condition in enumerate(conditions):
            tell((len(files) - len(todo) + turn) * len(conditions) + index, total, condition.label, left)
            rows.append(_text_row(model, condition, number, next(scored)))
        _save(files[number], rows)


def _score_causal(model: Any, chunks: Chunks, number: int, conditions: Sequence[Condition], seed: int) -> Iterator[Row]:
    from sinklens.evaluation.perplexity import masked_nll

    own = mixed_seed(seed, number)  # else all chunks would lose the same random places
    for condition in conditions:
        (found,) = masked_nll(model, [chunks.ids[number]], condition, first=chunks.first, seed=own)
        yield {"nll": found.nll, "error": None, "dose": found.dose, "keys_removed": found.keys_removed}


def _score_bound(
    model: Any, chunks: Chunks, number: int, conditions: Sequence[Condition], seed: int, *, draws: int
) -> Iterator[Row]:
    from sinklens.evaluation.likelihood import Scorer

    ids, first, own = chunks.ids[number], chunks.first, mixed_seed(seed, number)
    for condition in conditions:
        scorer = Scorer(model=model, condition=condition, batch=ELBO_BATCH, draws=draws, seed=own)
        ((_, found),) = scorer.score([(ids[:first], ids[first:])])
        error = None if found.error is None else found.error / (len(ids) - first)
        value = -found.value / (len(ids) - first)
        yield {"nll": value, "error": error, "dose": scorer.doses.ratio, "keys_removed": None}


def _text_row(model: Any, condition: Condition, number: int, scored: Row) -> Row:
    head = {"model": name_of(model), "condition": str(condition), "chunk": number}
    return head | {name: getattr(condition, name) for name in ("choose", "top", "act", "draw")} | scored


def _save(path: Path, rows: Sequence[Row]) -> None:
    """Written whole, on the disk before it has its name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(column, pa.type_for_alias(kind)) for column, kind in TEXT_ROW.items()])
    with written_whole(path) as temporary:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), temporary, compression="zstd")
