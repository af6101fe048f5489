"""`steps` and `generate`: any sampler on any model, from a prompt in any form."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from sinklens.errors import UsageError
from sinklens.models.language_model import LanguageModel
from sinklens.models.load import wrap
from sinklens.sampling.graphs import captured
from sinklens.sampling.prompt import Padding, Prompt, read_prompt
from sinklens.sampling.rng import draws_from
from sinklens.sampling.special_ids import fill_id, stop_ids
from sinklens.sampling.step import Generation, Sampler, Step


def steps(
    model: Any,
    prompt: Prompt,
    sampler: Sampler,
    *,
    attention_mask: Padding | None = None,
    seed: int | None = None,
    graph: bool = False,
) -> Iterator[Step]:
    """The run as an iterator: each `next` runs one forward. Arguments are checked at once.

    `model` is a LanguageModel, or a transformers PreTrainedModel as it is (prompts are then ids, or `wrap` it
    with its tokenizer).
    With `seed` the draws are those of torch's default generators after `torch.manual_seed(seed)`, and the
    caller's generators are left as they were.
    graph: run the steps of a diffusion model as a CUDA graph (sampling/graphs.py): the same numbers, without the host's
    share of the time.
    """
    speaker = wrap(model)
    ids, padding = read_prompt(speaker, prompt, attention_mask)
    return _start(captured(speaker) if graph else speaker, ids, padding, sampler, seed)


def generate(
    model: Any,
    prompt: Prompt,
    sampler: Sampler,
    *,
    attention_mask: Padding | None = None,
    seed: int | None = None,
    graph: bool = False,
) -> Generation:
    """The finished run; arguments as for `steps`."""
    speaker = wrap(model)
    ids, padding = read_prompt(speaker, prompt, attention_mask)
    taken = list(_start(captured(speaker) if graph else speaker, ids, padding, sampler, seed))
    if not taken:
        raise UsageError(f"{type(sampler).__name__}.run yielded no step; a sampler yields one Step for each forward")
    final, lengths, text = finish(speaker, taken[-1].canvas, ids.shape[1], sampler)
    return Generation(
        ids=final,
        canvases=_canvases(speaker, taken),
        lengths=lengths,
        text=text,
        steps=len(taken),
        prompt_length=ids.shape[1],
    )


def finish(
    model: LanguageModel, canvas: Int[Tensor, "batch position"], start: int, sampler: Sampler
) -> "tuple[Int[Tensor, 'batch final'], Int[Tensor, ' batch'], list[str] | None]":
    """Of the last canvas, prompt first: the ids as a Generation gives them, how many count, and their text."""
    missing = start + getattr(sampler, "length", 0) - canvas.shape[1]  # more than 0: all rows ended early
    final = torch.nn.functional.pad(canvas, (0, max(0, missing)), value=fill_id(model.spec))
    generated, lengths = _finish(model, final[:, start:], getattr(sampler, "eos_id", None))
    return torch.cat([final[:, :start], generated], dim=1), lengths, _text(model, generated, lengths)


def _start(
    model: LanguageModel,
    ids: Int[Tensor, "batch position"],
    padding: "Int[Tensor, 'batch position'] | None",
    sampler: Sampler,
    seed: int | None,
) -> Iterator[Step]:
    if isinstance(sampler, type) or not callable(getattr(sampler, "run", None)):
        raise UsageError(
            f"sampler is {sampler!r}; expected an object with run(model, prompt, attention_mask), "
            "for instance LLaDASampler(steps=64, length=64, block=32)"
        )
    draws = draws_from(seed, torch.device(model.device))
    run: Any = sampler.run(model, ids, padding)
    if not isinstance(run, Iterable):
        raise UsageError(
            f"{type(sampler).__name__}.run returned a {type(run).__name__}; expected its steps: write it as a "
            "generator (yield), or return a list of Step"
        )
    return _advance(iter(run), draws)


def _advance(run: Iterator[Step], draws: Callable[[], AbstractContextManager[None]]) -> Iterator[Step]:
    """One step at a time, gradients off and the run's draws swapped in; both are the caller's again in
    between.
    """
    while True:
        with torch.no_grad(), draws():
            step = next(run, None)
        if step is None:
            return
        yield step


def _canvases(model: LanguageModel, taken: list[Step]) -> "Int[Tensor, 'canvas batch position'] | None":
    """The canvas before step 0 and after each step; None where it grows, or where nothing is masked."""
    if model.spec.causal or model.spec.mask_id is None or len({step.canvas.shape for step in taken}) > 1:
        return None
    before = taken[0].canvas.masked_fill(taken[0].committed, model.spec.mask_id)
    return torch.stack([before, *(step.canvas for step in taken)])


def _finish(
    model: LanguageModel, generated: Int[Tensor, "batch position"], eos_id: int | None
) -> "tuple[Int[Tensor, 'batch position'], Int[Tensor, ' batch']]":
    """The generated ids, masks behind the first end filled in, and how many they are up to that end."""
    spec = model.spec
    ends = torch.tensor(stop_ids(spec, eos_id), dtype=generated.dtype, device=generated.device)
    ended = torch.isin(generated, ends)
    masked = torch.zeros_like(ended) if spec.mask_id is None else generated == spec.mask_id
    behind = (ended.cumsum(dim=1) - ended.long()) > 0
    trailing = (~masked).flip(1).cumsum(dim=1).flip(1) == 0  # never decided, nor anything after it
    return generated.masked_fill(masked & behind, fill_id(spec)), (~behind & ~trailing).sum(dim=1)


def _text(
    model: LanguageModel, generated: Int[Tensor, "batch position"], lengths: Int[Tensor, " batch"]
) -> list[str] | None:
    if model.tokenizer is None:
        return None
    rows = [row[:length] for row, length in zip(generated.tolist(), lengths.tolist(), strict=True)]
    spoken = [[token for token in row if token != model.spec.mask_id] for row in rows]
    return [model.tokenizer.decode(row, skip_special_tokens=True) for row in spoken]
