"""Five English sets of LongBench from local files in the published layout, with their scores.

    FOLDER/hotpotqa.jsonl ...          one object a line: input, context, answers (a list), and more that is not used
    FOLDER/config/dataset2prompt.json  the published wording of the prompts, by set; also FOLDER/dataset2prompt.json
    FOLDER/config/dataset2maxlen.json  tokens of an answer, by set

The files of `data/` may also lie in FOLDER/data. Without the file of prompts each set is asked in words of our own, and
scores are then not to be set beside published ones; `Wordings.published` says which it is.

A prompt that is too long loses its middle, as in the published protocol. The score of an answer is the best over the
accepted answers: F1 of words, or ROUGE-L (F, by the longest common subsequence of words) for summaries.
"""

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sinklens.errors import UsageError, choose
from sinklens.tasks.files import data_path, find_file

NAME = "longbench"
HOW = (
    "the folder of the published files: narrativeqa.jsonl, qasper.jsonl, hotpotqa.jsonl, 2wikimqa.jsonl, qmsum.jsonl, "
    "and config/dataset2prompt.json"
)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One problem: what is asked about what, and the answers that are accepted."""

    set: str
    number: int  # line of the file, from 0
    question: str
    context: str
    answers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Wordings:
    """How sets are asked, and how long their answers may be."""

    prompts: Mapping[str, str]  # with {context} and {input}
    tokens: Mapping[str, int]
    published: bool  # whether the prompts are those of the benchmark's own file


def f1(text: str, answer: str) -> float:
    """F1 of the words of two texts, without case, punctuation and articles.

    >>> f1("The red house.", "a red car")
    0.5
    """
    return _harmonic(*(_words(one) for one in (text, answer)), common=_shared)


def rouge_l(text: str, answer: str) -> float:
    """ROUGE-L: F1 of the longest common subsequence of words, lower case.

    >>> rouge_l("the cat sat down", "the cat lay down")
    0.75
    """
    return _harmonic(text.lower().split(), answer.lower().split(), common=_subsequence)


SCORES: Mapping[str, Callable[[str, str], float]] = MappingProxyType(
    {"narrativeqa": f1, "qasper": f1, "hotpotqa": f1, "2wikimqa": f1, "qmsum": rouge_l}
)
SETS = tuple(SCORES)
_OWN = Wordings(
    prompts=MappingProxyType(
        dict.fromkeys(SETS, "{context}\n\nAnswer with a few words of the text above.\nQuestion: {input}\nAnswer:")
        | {"qmsum": "{context}\n\nAnswer in a few sentences from the meeting above.\nQuestion: {input}\nAnswer:"}
    ),
    tokens=MappingProxyType({"narrativeqa": 128, "qasper": 128, "hotpotqa": 32, "2wikimqa": 32, "qmsum": 512}),
    published=False,
)


def score(name: str, text: str, answers: Sequence[str]) -> float:
    """The best over the accepted answers."""
    rule = SCORES[choose("set", name, SETS)]
    return max((rule(text, answer) for answer in answers), default=0.0)


def read_set(data: Any, name: str) -> list[Entry]:
    """All problems of a set. data: the folder."""
    choose("set", name, SETS)
    folder = _folder(data)
    path = find_file(folder, [f"{name}.jsonl", f"data/{name}.jsonl"])
    if path is None:
        raise UsageError(f"{folder} does not hold {name}.jsonl, nor data/{name}.jsonl; give {HOW}")
    lines = path.read_text("utf-8").split("\n")
    return [_entry(line, name, number, path) for number, line in enumerate(lines) if line.strip()]


def read_wordings(data: Any) -> Wordings:
    """The published prompts and lengths where the folder has them, else our own."""
    folder = _folder(data)
    prompts = _by_set(folder, "dataset2prompt.json", str)
    tokens = _by_set(folder, "dataset2maxlen.json", int)
    return Wordings(
        prompts=prompts or _OWN.prompts, tokens=_OWN.tokens if tokens is None else tokens, published=prompts is not None
    )


def ask(entry: Entry, wordings: Wordings) -> str:
    """The prompt of a problem. Braces inside texts stay as they are."""
    before, _, rest = wordings.prompts[entry.set].partition("{context}")
    between, _, after = rest.partition("{input}")
    return f"{before}{entry.context}{between}{entry.question}{after}"


def cut_middle(ids: Sequence[int], length: int) -> list[int]:
    """The first and the last half of `length` ids, where there are more."""
    half = length // 2
    return list(ids) if len(ids) <= length else [*ids[:half], *ids[len(ids) - (length - half) :]]


def _folder(data: Any) -> Path:
    path = data_path(data, task=NAME, how=HOW)
    if not path.is_dir():
        raise UsageError(f"data of {NAME} is {path}, a file; give {HOW}")
    return path


def _entry(line: str, name: str, number: int, path: Path) -> Entry:
    try:
        found = json.loads(line)
        question, context, answers = (found[field] for field in ("input", "context", "answers"))
    except (ValueError, KeyError, TypeError):
        question = context = answers = None
    listed = isinstance(answers, list) and bool(answers) and all(isinstance(one, str) for one in answers)
    if not isinstance(question, str) or not isinstance(context, str) or not listed:
        raise UsageError(
            f"{path}, line {number + 1}: expected a JSON object with the texts input and context, and answers as a "
            "list of texts"
        )
    return Entry(set=name, number=number, question=question, context=context, answers=tuple(answers or ()))


def _by_set(folder: Path, file: str, kind: type) -> dict[str, Any] | None:
    path = find_file(folder, [f"config/{file}", file])
    if path is None:
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
        fitting = {name: found[name] for name in SETS}
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} cannot be read ({error!r}); expected JSON with an entry for {', '.join(SETS)}"
        ) from None
    for name, value in fitting.items():
        lacks = kind is str and not ("{context}" in str(value) and "{input}" in str(value).partition("{context}")[2])
        if not isinstance(value, kind) or lacks:
            raise UsageError(f"{path}: {name} is {value!r}; expected {_EXPECTED[kind]}")
    return fitting


_EXPECTED: Mapping[type, str] = MappingProxyType(
    {str: "a text with {context}, then {input}", int: "a number of tokens"}
)


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _harmonic(text: list[str], answer: list[str], *, common: Callable[[list[str], list[str]], int]) -> float:
    """2 common / (both lengths), which is F1 of common / length of each."""
    return 2 * common(text, answer) / (len(text) + len(answer)) if text and answer else 0.0


def _shared(text: list[str], answer: list[str]) -> int:
    return sum((Counter(text) & Counter(answer)).values())


def _subsequence(text: list[str], answer: list[str]) -> int:
    """Words of the longest common subsequence."""
    row = [0] * (len(answer) + 1)
    for word in text:
        before = row[:]
        for place, other in enumerate(answer, start=1):
            row[place] = before[place - 1] + 1 if word == other else max(before[place], row[place - 1])
    return row[-1]
