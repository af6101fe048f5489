"""What a step reads: windows of natural text, and rows of one problem each. Both follow from seed and step alone."""

import lzma
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt16
from torch import Tensor

from sinklens.errors import UsageError
from sinklens.files import written_whole
from sinklens.tasks import task
from sinklens.training.recipe import Data
from sinklens.training.tokenizer import EOS
from sinklens.training.workers import worker_pool

CHUNK = 5000  # problems that one worker makes at a time
TEXT, HELD_OUT = "text.npy.xz", "held-out.npy.xz"


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskRows:
    """bos, prompt, answer, and eos to the end of the row."""

    ids: UInt16[np.ndarray, "row position"]
    answers: Int[np.ndarray, " row"]  # where the answer begins
    ends: Int[np.ndarray, " row"]  # its first eos


def read_tokens(path: Path) -> UInt16[np.ndarray, " token"]:
    """A stream of token ids as `corpus` wrote it."""
    if not path.is_file():
        raise UsageError(f"no {path}; expected the folder that `python -m sinklens.training.prepare --to DIR` makes")
    with lzma.open(path) as file:
        tokens: np.ndarray[Any, Any] = np.load(file)
    return tokens


def write_tokens(path: Path, tokens: UInt16[np.ndarray, " token"]) -> None:
    with lzma.open(path, "wb", preset=2) as file:
        np.save(file, tokens)


def task_rows(
    name: str, split: str, *, count: int, length: int, tokenizer: Path, seed: int = 0, workers: int = 1
) -> TaskRows:
    """The first `count` problems of a split that fit, as rows; the same for any number of workers."""
    make = partial(_chunk, name=name, split=split, length=length, folder=tokenizer, seed=seed)
    chunks = [range(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]
    if workers == 1:
        made = [make(chunk) for chunk in chunks]
    else:
        with worker_pool(workers) as pool:
            made = list(pool.map(make, chunks))
    return TaskRows(
        ids=np.concatenate([rows.ids for rows in made]),
        answers=np.concatenate([rows.answers for rows in made]),
        ends=np.concatenate([rows.ends for rows in made]),
    )


def _chunk(numbers: range, *, name: str, split: str, length: int, folder: Path, seed: int) -> TaskRows:
    """The problems of these numbers; those that are too long for a row are left out."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    eos = tokenizer.token_to_id(EOS)
    items = list(islice(task(name).items(split, seed=seed, start=numbers.start), len(numbers)))
    count = len(items)
    prompts = tokenizer.encode_batch([item.prompt for item in items])
    answers = tokenizer.encode_batch([item.answer for item in items], add_special_tokens=False)
    ids = np.full((count, length), eos, dtype=np.uint16)
    begins, ends = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        whole = [*prompt.ids, *answer.ids]
        ids[row, : len(whole)] = whole[:length]
        begins[row], ends[row] = len(prompt.ids), len(whole)
    fits = ends < length
    return TaskRows(ids=ids[fits], answers=begins[fits], ends=ends[fits])


def task_pools(data: Data, folder: Path, workers: int) -> dict[str, TaskRows]:
    """The problems that training draws from, made once for a folder: every run reads the same."""
    pools = {}
    for name, count in split_rows(data.pool, dict(data.tasks)).items():
        path = folder / "pools" / f"{name}-{count}-{data.task_context}.npz"
        if not path.is_file():
            rows = task_rows(name, "train", count=count, length=data.task_context, tokenizer=folder, workers=workers)
            with written_whole(path) as temporary, temporary.open("wb") as file:  # savez would rename a path
                np.savez(file, ids=rows.ids, answers=rows.answers, ends=rows.ends)
        with np.load(path) as stored:
            pools[name] = TaskRows(ids=stored["ids"], answers=stored["answers"], ends=stored["ends"])
    return pools


class Reader:
    """The rows of any step, on the device that trains."""

    def __init__(
        self,
        data: Data,
        text: UInt16[np.ndarray, " token"],
        pools: dict[str, TaskRows],
        *,
        bos_id: int,
        device: torch.device,
    ) -> None:
        if len(text) <= data.context:
            raise UsageError(f"the text has {len(text)} tokens; expected more than a row of {data.context}")
        self.data, self.bos_id, self.device = data, bos_id, device
        self._text = torch.from_numpy(text.astype(np.int32)).to(device)
        self._pools = {
            name: tuple(
                torch.from_numpy(part).to(device) for part in (rows.ids.astype(np.int32), rows.answers, rows.ends)
            )
            for name, rows in pools.items()
        }

    def text_rows(self, draws: torch.Generator) -> "tuple[Int[Tensor, 'row position'], Float[Tensor, 'row position']]":
        """Windows of the stream behind a bos, and the importance of each token: one, but for bos."""
        width = self.data.context - 1
        starts = torch.randint(len(self._text) - width, (self.data.text_rows,), generator=draws)
        window = self._text[starts.to(self.device)[:, None] + torch.arange(width, device=self.device)].long()
        ids = torch.nn.functional.pad(window, (1, 0), value=self.bos_id)
        importance = torch.ones_like(ids, dtype=torch.float32)
        importance[:, 0] = 0
        return ids, importance

    def task_rows(
        self, draws: torch.Generator, *, whole: bool
    ) -> "tuple[Int[Tensor, 'row position'], Float[Tensor, 'row position']]":
        """Problems; what counts is the answer and the eos behind it, or (`whole`) all up to the first eos."""
        ids, importance = [], []
        for name, count in split_rows(self.data.task_rows, dict(self.data.tasks)).items():
            pool, answers, ends = self._pools[name]
            chosen = torch.randint(len(pool), (count,), generator=draws).to(self.device)
            place = torch.arange(pool.shape[1], device=self.device)
            ids.append(pool[chosen].long())
            end, answer = ends[chosen, None], answers[chosen, None]
            tail = torch.where(place <= end, 1.0, 0.0 if whole else self.data.tail_weight)
            importance.append(tail if whole else torch.where(place >= answer, tail, 0.0))
        return torch.cat(ids), torch.cat(importance)


def split_rows(rows: int, shares: dict[str, float]) -> dict[str, int]:
    """`rows` by their shares, the rest to the first.

    >>> split_rows(10, {"a": 2.0, "b": 1.0})
    {'a': 7, 'b': 3}
    """
    total = sum(shares.values())
    counts = {name: int(rows * share / total) for name, share in shares.items()}
    counts[next(iter(counts))] += rows - sum(counts.values())
    return counts


def draws_of(seed: int, step: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of its own for every step: a resumed run goes on with the same rows."""
    return torch.Generator(device).manual_seed(seed * 1_000_003 + step)  # torch's generator takes 32 bits of it
