"""Long prompts with an answer, in tokens, and how what a model wrote is scored: passkey, needle, longbench.

All problems of a length have prompts of exactly that many tokens, except those of a published grid or file, which have
their own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sinklens.errors import UsageError, choose
from sinklens.tasks import longbench, needle, passkey, passkey_long
from sinklens.tasks.haystack import Buried, encode

TASKS = ("passkey", "needle", "longbench")
BINARY = ("passkey",)  # right or wrong; the others have scores in between
MORE = 3  # tokens that a pass key may be followed by


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A prompt and what is needed to score its answer."""

    task: str
    set: str | None = None
    length: int  # that the problem stands for
    depth: float | None = None
    number: int
    ids: tuple[int, ...]
    answer: str
    answers: tuple[str, ...] = ()  # accepted, of longbench
    answer_ids: tuple[int, ...] = ()  # of passkey
    new_tokens: int
    at: float | None = None  # depth that came out

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from all others of the experiment."""
        return (self.task, self.set, self.length, self.depth, self.number)

    def score(self, text: str, ids: Sequence[int]) -> dict[str, Any]:
        """`score` from 0 to 1 and, where the task has it, `right`."""
        if self.task == "passkey":
            right = passkey_long.found(ids, self.answer_ids)
            return {"score": float(right), "right": right}
        value = needle.score(text) if self.task == "needle" else longbench.score(str(self.set), text, self.answers)
        return {"score": value, "right": None}


@dataclass(frozen=True, kw_only=True)
class Asking:
    """Which problems are made, apart from how many."""

    lengths: tuple[int, ...] = (256, 512, 1024, 2048)
    depths: tuple[float, ...] | None = None  # None: drawn for passkey, five for needle
    wording: str = "own"  # of passkey (passkey_long.py)
    paper_grid: bool = False  # lengths and depths as published
    documents: tuple[str, ...] = field(default=(), repr=False)  # the haystack
    data: str | None = None  # folder of longbench
    sets: tuple[str, ...] = longbench.SETS
    seed: int = 0

    def __post_init__(self) -> None:
        choose("wording", self.wording, tuple(passkey_long.WORDINGS))
        for name in self.sets:
            choose("set", name, longbench.SETS)
        if not self.lengths or min(self.lengths) < 1:
            raise UsageError(f"lengths are {self.lengths}; expected numbers of tokens such as 256,512")
        if any(not 0 <= depth <= 1 for depth in self.depths or ()):
            raise UsageError(f"depths are {self.depths}; expected shares from 0 to 1, or percents such as 0%,50%,100%")


NEEDLE_DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


def make_problems(tokenizer: Any, task: str, asking: Asking, *, count: int) -> list[list[Problem]]:
    """Cells of problems, `count` in each (longbench: as many as its files have, if fewer): a length, a depth, a set."""
    choose("task", task, TASKS)
    if tokenizer is None:
        raise UsageError(f"this model came without a tokenizer; {task} needs one")
    made = {"passkey": _passkeys, "needle": _needles, "longbench": _longbench}[task]
    return [list(group) for group in made(tokenizer, asking, count)]


def _passkeys(tokenizer: Any, asking: Asking, count: int) -> Iterator[Iterator[Problem]]:
    if asking.paper_grid:
        for step in passkey_long.GRID:
            yield (_paper_passkey(tokenizer, step, number, asking.seed) for number in range(count))
        return
    for length in asking.lengths:
        for depth in asking.depths or (None,):
            yield (_passkey(tokenizer, length, depth, number, asking) for number in range(count))


def _passkey(tokenizer: Any, length: int, depth: float | None, number: int, asking: Asking) -> Problem:
    buried, key = passkey_long.build(
        tokenizer, length=length, number=number, wording=asking.wording, seed=asking.seed, depth=depth
    )
    return _with_key(tokenizer, key, length=length, depth=depth, number=number, ids=buried.ids, at=buried.depth)


def _paper_passkey(tokenizer: Any, step: int, number: int, seed: int) -> Problem:
    text, key = passkey_long.paper_text(step, number=number, seed=seed)
    ids = tuple(encode(tokenizer, text, special=True))
    return _with_key(tokenizer, key, length=passkey_long.paper_characters(step), number=number, ids=ids)


def _with_key(tokenizer: Any, key: str, **place: Any) -> Problem:
    answer = passkey_long.answer_ids(tokenizer, key)
    return Problem(task=passkey.NAME, answer=f" {key}", answer_ids=answer, new_tokens=len(answer) + MORE, **place)


def _needles(tokenizer: Any, asking: Asking, count: int) -> Iterator[Iterator[Problem]]:
    hay = encode(tokenizer, "\n\n".join(asking.documents))
    if not hay:
        raise UsageError("needle needs a text to hide the needle in; give one (--text FILE)")
    lengths: Mapping[int, int] = {length: length for length in asking.lengths}
    depths = NEEDLE_DEPTHS if asking.depths is None else asking.depths
    if asking.paper_grid:
        lengths = {length: needle.paper_length(tokenizer, length) for length in needle.PAPER_LENGTHS}
        depths = tuple(depth / 100 for depth in needle.PAPER_DEPTHS)
    for length, tokens in lengths.items():
        for depth in depths:
            built = (
                (number, needle.build(tokenizer, hay, length=tokens, depth=depth, number=number, seed=asking.seed))
                for number in range(count)
            )
            yield (_needle(one, length=length, depth=depth, number=number) for number, one in built)


def _needle(buried: Buried, **place: Any) -> Problem:
    return Problem(
        task=needle.NAME, ids=buried.ids, at=buried.depth, answer=needle.ANSWER, new_tokens=needle.NEW_TOKENS, **place
    )


def _longbench(tokenizer: Any, asking: Asking, count: int) -> Iterator[Iterator[Problem]]:
    wordings = longbench.read_wordings(asking.data)
    longest = max(asking.lengths)
    for name in asking.sets:
        entries = longbench.read_set(asking.data, name)[:count]
        yield (
            Problem(
                task=longbench.NAME,
                set=name,
                length=longest,
                number=entry.number,
                ids=tuple(
                    longbench.cut_middle(encode(tokenizer, longbench.ask(entry, wordings), special=True), longest)
                ),
                answer=entry.answers[0],
                answers=entry.answers,
                new_tokens=wordings.tokens[name],
            )
            for entry in entries
        )
