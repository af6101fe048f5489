"""Rows of an experiment as `sinklens mask` writes them, made by hand."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sinklens.evaluation.conditions import parse_condition

SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("model", "task", "split", "condition", "choose")]
    + [("top", pa.int64()), ("epsilon", pa.float64())]
    + [(name, pa.string()) for name in ("act", "scope", "keys", "measure")]
    + [("draw", pa.int64()), ("problem", pa.int64())]
    + [(name, pa.string()) for name in ("prompt", "answer", "text")]
    + [("right", pa.bool_()), ("grades", pa.string()), ("dose", pa.float64()), ("keys_removed", pa.float64())]
    + [("tokens", pa.int64()), ("steps", pa.int64()), ("causal", pa.bool_())]
)


def cell_rows(
    model: str,
    condition: str,
    right: Sequence[Any],
    *,
    task: str = "word_problems",
    causal: bool | None = None,
    dose: float | None = None,
    keys_removed: float | None = None,
    problems: Sequence[int] | None = None,
) -> list[dict[str, Any]]:
    """One row for each problem; `right` is 0 or 1 for each."""
    parsed = parse_condition(condition)
    told = {name: value for name, value in parsed.as_dict().items() if name in SCHEMA.names}
    if causal is None:
        causal = "llama" in model
    return [
        {
            "model": model, "task": task, "split": "test", "condition": str(parsed), **told, "problem": problem,
            "prompt": f"{problem}?", "answer": "1", "text": "1", "right": bool(one), "grades": "{}",
            "dose": dose, "keys_removed": keys_removed, "tokens": 8, "steps": 4, "causal": causal,
        }
        for problem, one in zip(range(len(right)) if problems is None else problems, right, strict=True)
    ]  # fmt: skip


def random_rows(model: str, condition: str, draws: Sequence[Sequence[Any]], **options: Any) -> list[dict[str, Any]]:
    """The rows of a random control, [draw][problem]."""
    return [
        row
        for number, right in enumerate(draws)
        for row in cell_rows(model, f"{condition},draw={number}", right, **options)
    ]


def write_rows(folder: Path, rows: Sequence[Mapping[str, Any]], *, files: int = 1) -> Path:
    """rows/*.parquet, the rows dealt out over so many files."""
    (folder / "rows").mkdir(parents=True, exist_ok=True)
    for number in range(files):
        table = pa.Table.from_pylist([dict(row) for row in rows[number::files]], schema=SCHEMA)
        pq.write_table(table, folder / "rows" / f"{number}.parquet")
    return folder


def write_table(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)
