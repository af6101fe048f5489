"""Prompts in, rows out: batch after batch, watched, and with nothing lost when it is interrupted.

The display is fed by a sampler that wraps the real one: `generate` runs it like any other, and what it has
yielded last is the canvas so far.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jaxtyping import Int
from torch import Tensor, nn

import sinklens
from sinklens.cli.live import MASK_BLOCK, CanvasDisplay, CountDisplay, Display
from sinklens.cli.output import stderr_console
from sinklens.cli.prompts import Prompt
from sinklens.errors import UsageError
from sinklens.models.language_model import LanguageModel
from sinklens.models.load import Loaded
from sinklens.sampling.step import Generation, Sampler, Step


class Watched:
    """A sampler whose steps are shown as they come; `canvas` and `steps` tell how far it got."""

    def __init__(self, sampler: Sampler, display: Display) -> None:
        self._sampler, self._display = sampler, display
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
            self._display.show(rows, step=self.steps, steps=max(self.steps, self._expected))
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
    return {
        "model": model.spec.source,
        "family": model.spec.family,
        "sampler": {"name": type(sampler).__name__, **asdict(sampler)},
        "seed": seed,
        "device": str(model.device),
        "dtype": _dtype_of(model),
        "prompts": len(prompts),
        "interrupted": outcome.interrupted,
        "results": outcome.rows,
    }


def encode(model: Loaded, prompt: Prompt, *, chat: bool) -> list[int]:
    """Ids of one prompt; text goes through the chat format of the model when `chat` is set."""
    if prompt.ids is not None:
        if chat:
            raise UsageError("--chat formats text, but the prompt is ids; leave one of the two out")
        return list(prompt.ids)
    if model.tokenizer is None:
        raise UsageError(
            f"the prompt is text, but {model.spec.source or 'this model'} has no tokenizer; use --prompt-ids 1,2,3"
        )
    if prompt.messages is not None or chat:
        messages = prompt.messages or ({"role": "user", "content": prompt.text or ""},)
        return [int(token) for token in model.chat(messages).tolist()]
    assert prompt.text is not None
    return list(model.tokenizer.encode(prompt.text))


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
    encoded = [encode(model, prompt, chat=chat) for prompt in prompts]
    outcome = Outcome(rows=[])
    for number, start in enumerate(range(0, len(prompts), size)):
        batch, ids = prompts[start : start + size], encoded[start : start + size]
        watched = Watched(sampler, display)
        began = time.monotonic()
        try:
            # One seed for all would repeat the same draws in every batch.
            made = sinklens.generate(model, ids, watched, seed=None if seed is None else seed + number)
            rows = _finished(made)
        except KeyboardInterrupt:
            outcome.interrupted = True
            rows = _so_far(model, watched, width=max(map(len, ids)), rows=len(batch))
        seconds = round(time.monotonic() - began, 3)
        run = {"finished": not outcome.interrupted, "steps": watched.steps, "seconds": seconds}
        for prompt, given, row in zip(batch, ids, rows, strict=True):
            outcome.rows.append({"prompt": prompt.text, "prompt_ids": given, **asdict(row), **run})
        if outcome.interrupted:
            break
    return outcome


def _finished(made: Generation) -> list[Row]:
    texts: Sequence[str | None] = made.text if made.text is not None else [None] * len(made.ids)
    rows = zip(made.ids.tolist(), made.lengths.tolist(), texts, strict=True)
    return [Row(ids=row[made.prompt_length :], length=length, text=text) for row, length, text in rows]


def _so_far(model: LanguageModel, watched: Watched, *, width: int, rows: int) -> list[Row]:
    """The canvas as it stands behind prompts of `width`; nothing where no step was done."""
    generated: list[list[int]] = [[] for _ in range(rows)]
    if watched.canvas is not None:
        generated = watched.canvas[:, width:].tolist()
    decided = [sum(token != model.spec.mask_id for token in row) for row in generated]
    return [
        Row(ids=row, length=length, text=_read_canvas(model, row))
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
    return CanvasDisplay(console, mask_id=model.spec.mask_id, decode=decode)


def _dtype_of(model: LanguageModel) -> str | None:
    """Of the first parameter: what the model computes in."""
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return None if first is None else str(first.dtype).removeprefix("torch.")
