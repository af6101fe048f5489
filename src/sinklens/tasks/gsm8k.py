"""GSM8K from a local file, asked and graded as lm-evaluation-harness 0.4.13 does in its task `gsm8k`.

    Question: <a training problem>
    Answer: <its solution, calculator notes such as <<16-3-4=9>> included, then #### and the number>

    Question: <the problem>
    Answer:

Five training problems stand before each problem. They are drawn from `random.Random(seed)`, problem after problem in
the order of the file, so `seed=1234` gives the prompts of the harness, which uses that seed when told no other.

A text counts up to the first stop string. "strict" takes the number after the first "#### ", "flexible" the last
number anywhere; either must equal the solution's number as text, without commas, dollar signs and a final full stop.
So 18.00 is not 18: that is the harness's rule, and published scores follow it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

from sinklens.errors import UsageError, choose
from sinklens.tasks.draws import begin_items
from sinklens.tasks.files import data_path, find_file, read_rows, split_names
from sinklens.tasks.item import Item

NAME = "gsm8k"
SPLITS = ("train", "test")
SHOTS = 5
SEED = 1234  # of the examples: that of lm-evaluation-harness
STOPS = ("Question:", "</s>", "<|im_end|>")
HOW = (
    "a folder with test.jsonl and train.jsonl as in the repository openai/grade-school-math, or with the Parquet files "
    "of the data set openai/gsm8k, or one such file"
)
_FIELDS = ("question", "answer")
_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_FLEXIBLE = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")
_UP_TO_MARK = re.compile(r".*#### ", re.DOTALL)
_FULL_STOP = re.compile(r"\.$")


def items(split: str, *, data: Any = None, seed: Any = SEED, start: Any = 0, shots: Any = SHOTS) -> Iterator[Item]:
    """The problems of a split from number `start` on; `data` is a folder or a file, `shots` the worked examples."""
    choose("split", split, SPLITS)
    begin_items(NAME, split, seed=seed, start=start)  # for its checks: here the file decides, not draws
    if not isinstance(shots, int) or isinstance(shots, bool) or shots < 0:
        raise UsageError(f"shots is {shots!r}; give the number of worked examples before each problem, from 0 on")
    path = data_path(data, task=NAME, how=HOW)
    asked = path if path.is_file() else _in_folder(path, split, "the problems")
    rows = read_rows(asked, fields=_FIELDS)
    examples = _examples(path, split, rows, shots) if shots else []
    return islice(_items(split, rows, examples, shots=shots, seed=seed), start, None)


def _in_folder(folder: Path, split: str, what: str) -> Path:
    found = find_file(folder, split_names(split))
    if found is None:
        names = f"{split}.jsonl, {split}.jsonl.gz, {split}.parquet or {split}-*.parquet"
        raise UsageError(f"{folder} does not hold {what}: none of {names}; give {HOW}")
    return found


def _examples(path: Path, split: str, rows: list[Mapping[str, str]], shots: int) -> list[Mapping[str, str]]:
    """The training problems; for a file of test problems those in the same folder."""
    if split == "train":
        examples = rows
    else:
        folder = path.parent if path.is_file() else path
        training = _in_folder(folder, "train", f"the training problems that shots={shots} takes its examples from")
        examples = read_rows(training, fields=_FIELDS)
    needed = shots + (split == "train")
    if len(examples) < needed:
        raise UsageError(f"shots={shots} needs {needed} training problems, there are {len(examples)}; ask for fewer")
    return examples


def _items(
    split: str, rows: Sequence[Mapping[str, str]], examples: Sequence[Mapping[str, str]], *, shots: int, seed: int
) -> Iterator[Item]:
    drawing = Random(seed)
    for index, row in enumerate(rows):
        # A problem is no example of itself: one more is drawn where it could be.
        drawn = drawing.sample(range(len(examples)), shots + (split == "train")) if shots else []
        shown = [number for number in drawn if split != "train" or number != index][:shots]
        before = "".join(f"{_ask(examples[number])} {examples[number]['answer']}\n\n" for number in shown)
        yield Item(
            task=NAME,
            split=split,
            index=index,
            template=" ".join(["question-answer", *(f"train.{number}" for number in shown)]),
            prompt=before + _ask(row),
            answer=f" {row['answer']}",
            facts=MappingProxyType({"answer": _plain(row["answer"])}),
        )


def _ask(row: Mapping[str, str]) -> str:
    return f"Question: {row['question']}\nAnswer:"


def cut(text: str) -> str:
    """What a model wrote, up to the first stop string."""
    return min((text.split(stop, 1)[0] for stop in STOPS), key=len)


def grades(item: Item, text: str) -> dict[str, bool]:
    """Whether the text is right by the strict and by the flexible rule."""
    written = cut(text)
    marked = _STRICT.search(written)
    numbers = _FLEXIBLE.findall(written)
    return {
        "strict": marked is not None and _plain(marked[1]) == item.facts["answer"],
        "flexible": bool(numbers) and _plain(numbers[-1]) == item.facts["answer"],
    }


def grade(item: Item, text: str) -> bool:
    """Whether the text is right by the strict rule."""
    return grades(item, text)["strict"]


def _plain(number: str) -> str:
    """Without commas, dollar signs, what leads up to the mark, and a final full stop; in that order."""
    bare = number.replace(",", "").replace("$", "")
    return _FULL_STOP.sub("", _UP_TO_MARK.sub("", bare)).lower()
