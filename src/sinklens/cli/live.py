"""What a generation looks like while it runs: the canvas filling in, or a count of steps.

On a terminal the generated part of the canvas is drawn at most FRAMES times a second: masked positions as dim
blocks, what was committed since the last frame highlighted, the rest plain, the token that ends a text as one sign: a
diffusion model fills what is left with it. Elsewhere, or when the live view
is not wanted, nothing is said about a run of under two seconds; a longer one shows the step it is at.
Everything goes to stderr, and a finished display is wiped: the result is printed by whoever generated it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

Rows = Sequence[Sequence[int]]
Clock = Callable[[], float]

FRAMES = 15.0  # a second
PATIENCE = 2.0  # seconds without a word
INTERVAL = 10.0  # seconds between two lines where nothing can be redrawn
MASK_BLOCK = "░"
END_SIGN = "∎"


@runtime_checkable
class Display(Protocol):
    """Shown one batch after the other, each step by step."""

    def show(self, rows: Rows, *, step: int, steps: int, label: str = "") -> None:
        """`rows`: the generated part of the canvas after `step` of `steps`; `label`: which prompts these are."""

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Alphabet:
    """How tokens are written."""

    mask_id: int | None
    eos_id: int | None = None
    decode: Callable[[int], str] | None  # None: as numbers

    def write(self, token: int) -> str:
        if self.decode is None:
            return f"{MASK_BLOCK if token == self.mask_id else token} "
        signs = {self.eos_id: END_SIGN, self.mask_id: MASK_BLOCK}
        return signs[token] if token in signs else self.decode(token)


def draw(rows: Rows, before: Rows | None, alphabet: Alphabet) -> Text:
    """The canvas as text. `before`: what was drawn last; positions that were masked there are highlighted."""
    text = Text(overflow="fold")
    for number, row in enumerate(rows):
        text.append("\n" if number else "")
        for position, token in enumerate(row):
            if token == alphabet.mask_id:
                style = "dim"
            else:
                style = "bold green" if _was_masked(before, number, position, alphabet.mask_id) else ""
            text.append(alphabet.write(token), style=style)
    return text


def _was_masked(before: Rows | None, number: int, position: int, mask_id: int | None) -> bool:
    if before is None or position >= len(before[number]):
        return True
    return before[number][position] == mask_id


class CanvasDisplay:
    """The canvas, redrawn in place on a terminal."""

    def __init__(self, console: Console, alphabet: Alphabet) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._live.start()
        self._alphabet = alphabet
        self._drawn: Rows | None = None
        self._drawn_at = float("-inf")
        self._label = ""

    def show(self, rows: Rows, *, step: int, steps: int, label: str = "") -> None:
        now = time.monotonic()
        if now - self._drawn_at < 1 / FRAMES and step < steps:
            return
        before = self._drawn if label == self._label else None
        text = draw(rows, before, self._alphabet)
        self._live.update(Text.assemble((f"{label}step {step}/{steps}\n", "dim"), text), refresh=True)
        self._drawn, self._drawn_at, self._label = rows, now, label

    def close(self) -> None:
        self._live.stop()


class CountDisplay:
    """The step (or another unit of work) a run is at, after two seconds of silence: a bar on a terminal, else a line
    now and then."""

    def __init__(self, console: Console, *, clock: Clock = time.monotonic, unit: str = "step") -> None:
        self._console, self._clock, self._unit = console, clock, unit
        self._speak_at = clock() + PATIENCE
        self._bar: tuple[Progress, TaskID] | None = None

    def show(self, rows: Rows, *, step: int, steps: int, label: str = "") -> None:
        if self._bar is not None:
            progress, task = self._bar
            progress.update(task, completed=step, total=steps, description=label)
        elif self._clock() >= self._speak_at:
            if self._console.is_terminal:
                self._bar = self._start_bar(step, steps, label)
            else:
                self._console.print(f"{label}{self._unit} {step}/{steps}", markup=False)
                self._speak_at = self._clock() + INTERVAL

    def _start_bar(self, step: int, steps: int, label: str) -> tuple[Progress, TaskID]:
        step_column = TextColumn(f"{{task.description}}{self._unit} {{task.completed}}/{{task.total}}", markup=False)
        columns = (step_column, BarColumn(), TimeElapsedColumn())
        progress = Progress(*columns, console=self._console, transient=True)
        progress.start()
        return progress, progress.add_task(label, completed=step, total=steps)

    def close(self) -> None:
        if self._bar is not None:
            self._bar[0].stop()
