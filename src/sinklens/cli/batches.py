"""Prompts in, rows out: batch after batch, watched, and with nothing lost when it is interrupted.

The display is fed by a sampler that wraps the real one: `generate` runs it like any other, and what it has
yielded last is the canvas so far.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jaxtyping import Int
from torch import Tensor

import sinklens
from sinklens.cli.live import MASK_BLOCK, Alphabet, CanvasDisplay, CountDisplay, Display
from sinklens.cli.output import stderr_console
from sinklens.interrupts import interrupts_named
from sinklens.models.language_model import LanguageModel
from sinklens.models.load import Loaded
from sinklens.recording.identity import describe_sampler, dtype_of
from sinklens.sampling.prompt_list import Prompt, encode_prompt
from sinklens.sampling.step import Generation, Sampler, Step


class Watched:
    """A sampler whose steps are shown as they come; `canvas` and `steps` tell how far it got."""

    def __init__(self, sampler: Sampler, display: Display, label: str = "") -> None:
        self._sampler, self._display, self._label = sampler, display, label
        self.length = int(getattr(sampler, "length", 0))
        self._expected = int(getattr(sampler, "steps", self.length))
        self.canvas: Tensor | None = None
        self.steps = 0

    def run(
        self,
        model: LanguageModel,
        prompt: Int[Tensor, "batch prompt"],
        attention_mask: Int[Tensor, "batch prompt"] | None = None,
    ) -> Iterator[Step]:
        for step in self._sampler.run(model, prompt, attention_mask):
            self.canvas, self.steps = step.canvas, step.index + 1
            rows = step.canvas[:, prompt.shape[1] :].tolist()
            self._display.show(rows, step=self.steps, steps=max(self.steps, self._expected), label=self._label)
            yield step


@dataclass
class Outcome:
    """The rows so far, as `--json` prints them, and whether the run was cut short."""

    rows: list[dict[str, Any]]
    interrupted: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of one prompt."""

    ids: list[int]  # generated; mask ids where an interrupted run left them
    length: int  # how many of them count: up to the end of the text, or those decided
    text: str | None  # None: no tokenizer
    finished: bool  # False: interrupted, or positions are left that no step decided


def generate_document(
    model: Loaded,
    prompts: Sequence[Prompt],
    sampler: Any,
    *,
    chat: bool,
    batch: int,
    seed: int | None,
    live: bool,
) -> dict[str, Any]:
    """Generate while it is watched, and describe the run as one document."""
    display = _open_display(model, live=live)
    try:
        outcome = run_batches(model, prompts, sampler, display, chat=chat, size=batch, seed=seed)
    finally:
        display.close()
    document = {
        "model": model.spec.source,
        "family": model.spec.family,
        "sampler": describe_sampler(sampler),
        "seed": seed,
        "device": str(model.device),
        "dtype": dtype_of(model),
        "mask_id": model.spec.mask_id,
        "prompts": len(prompts),
        "interrupted": outcome.interrupted,
        "results": outcome.rows,
    }
    warn_of_masks(document)
    return document


def run_batches(
    model: Loaded,
    prompts: Sequence[Prompt],
    sampler: Sampler,
    display: Display,
    *,
    chat: bool,
    size: int,
    seed: int | None,
) -> Outcome:
    """Every prompt in the order given, `size` at a time. Ctrl-C ends it with the canvas as it stands."""
    encoded = [encode_prompt(model, prompt, chat=chat) for prompt in prompts]
    outcome = Outcome(rows=[])
    for number, start in enumerate(range(0, len(prompts), size)):
        batch, ids = prompts[start : start + size], encoded[start : start + size]
        watched = Watched(sampler, display, _label(start, len(batch), len(prompts)))
        began = time.monotonic()
        try:
            # One seed for all would repeat the same draws in every batch.
            with interrupts_named():
                made = sinklens.generate(model, ids, watched, seed=None if seed is None else seed + number)
                rows = _finished(model, made, sampler)
        except KeyboardInterrupt:
            outcome.interrupted = True
            rows = _so_far(model, watched, width=max(map(len, ids)), rows=len(batch))
        seconds = round(time.monotonic() - began, 3)
        run = {"steps": watched.steps, "seconds": seconds}
        for prompt, given, row in zip(batch, ids, rows, strict=True):
            outcome.rows.append({"prompt": prompt.text, "prompt_ids": given, **asdict(row), **run})
        if outcome.interrupted:
            break
    return outcome


def warn_of_masks(document: dict[str, Any]) -> None:
    """Rows that ran to their end and still hold masks: on stderr, so that nobody takes them for whole."""
    for number, row in enumerate(document["results"], 1):
        left = row["ids"].count(document["mask_id"])
        if not row["finished"] and not document["interrupted"]:
            print(
                f"warning: prompt {number} is not finished: {left} of {len(row['ids'])} positions are still masked "
                "(masks in the prompt, or a proposed mask, used up their steps)",
                file=sys.stderr,
            )


def _label(start: int, size: int, prompts: int) -> str:
    """Which prompts run, where there are several: [2/5], or [3-4/5] at once."""
    if prompts == 1:
        return ""
    return f"[{start + 1}/{prompts}] " if size == 1 else f"[{start + 1}-{start + size}/{prompts}] "


def _finished(model: LanguageModel, made: Generation, sampler: Any) -> list[Row]:
    texts: Sequence[str | None] = made.text if made.text is not None else [None] * len(made.ids)
    rows = []
    for row, length, text in zip(made.ids.tolist(), made.lengths.tolist(), texts, strict=True):
        ids = row[made.prompt_length :]
        whole = not _undecided(model, ids, sampler)
        shown = text if whole else _read_canvas(model, ids)
        rows.append(Row(ids=ids, length=length, text=shown, finished=whole))
    return rows


def _undecided(model: LanguageModel, ids: list[int], sampler: Any) -> bool:
    """Whether masks are left, other than those behind the end at which `stop_at_eos` stopped."""
    if model.spec.mask_id is None:
        return False
    ends: set[int | None] = set()
    if getattr(sampler, "stop_at_eos", False):
        ends = {getattr(holder, name) for holder in (sampler, model.spec) for name in ("eos_id", "eot_id")}
    end = next((place for place, token in enumerate(ids) if token in ends), len(ids))
    return model.spec.mask_id in ids[:end]


def _so_far(model: LanguageModel, watched: Watched, *, width: int, rows: int) -> list[Row]:
    """The canvas as it stands behind prompts of `width`; nothing where no step was done."""
    generated: list[list[int]] = [[] for _ in range(rows)]
    if watched.canvas is not None:
        generated = watched.canvas[:, width:].tolist()
    decided = [sum(token != model.spec.mask_id for token in row) for row in generated]
    return [
        Row(ids=row, length=length, text=_read_canvas(model, row), finished=False)
        for row, length in zip(generated, decided, strict=True)
    ]


def _read_canvas(model: LanguageModel, row: list[int]) -> str | None:
    """The text of an unfinished row: a block for each position that is still masked."""
    if model.tokenizer is None:
        return None
    parts: list[str] = []
    run: list[int] = []
    for token in [*row, model.spec.mask_id]:
        if token != model.spec.mask_id:
            assert token is not None
            run.append(token)
            continue
        parts += [model.tokenizer.decode(run, skip_special_tokens=True), MASK_BLOCK]
        run = []
    return "".join(parts[:-1])


def _open_display(model: LanguageModel, *, live: bool) -> Display:
    console = stderr_console()
    if not (live and console.is_terminal):
        return CountDisplay(console)
    tokenizer = model.tokenizer
    decode = None if tokenizer is None else lambda token: str(tokenizer.decode([token]))
    return CanvasDisplay(console, Alphabet(mask_id=model.spec.mask_id, eos_id=model.spec.eos_id, decode=decode))
