"""What a checkpoint can do and how it attends: the measures that training logs and the cards of the models give.

A checkpoint is loaded by `sinklens.load` and looked at through `sinklens.observe`, as any user's model would be.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.attention.observe import observe
from sinklens.errors import UsageError
from sinklens.evaluation.answering import by_length, graded
from sinklens.evaluation.greedy import greedy_sampler
from sinklens.models.language_model import LanguageModel
from sinklens.models.load import Loaded
from sinklens.sampling.generate import generate
from sinklens.sampling.step import Sampler
from sinklens.sinks.detect import detect_sinks
from sinklens.tasks import task
from sinklens.tasks.item import Item
from sinklens.training.tokenizer import SPECIAL_TOKENS

ANSWER = 64  # tokens of an answer


def answering(model: LanguageModel, *, length: int = ANSWER, steps: int | None = None) -> Sampler:
    """The sampler that the measures of an embedded model use: greedy, one token a step unless `steps` says fewer."""
    return greedy_sampler(model, length=length, steps=steps)


def answers(
    model: LanguageModel, items: Sequence[Item], *, sampler: Sampler | None = None, batch: int = 64
) -> list[str]:
    """What the model writes after each prompt."""
    if model.tokenizer is None:
        raise UsageError(f"{model.spec.source} has no tokenizer; a task needs one")
    chosen = sampler or answering(model)
    written = [""] * len(items)
    for some in by_length(items, batch):
        out = generate(model, [items[number].prompt for number in some], chosen)
        for number, text in zip(some, out.text or [], strict=True):
            written[number] = text
    return written


def accuracy(
    model: LanguageModel,
    name: str,
    *,
    split: str,
    count: int,
    batch: int = 64,
    unsafe: bool = False,
    length: int = ANSWER,
) -> dict[str, Any]:
    """Share of the first `count` problems of a split that are answered right."""
    items = list(islice(task(name).items(split), count))
    texts = answers(model, items, sampler=answering(model, length=length), batch=batch)
    right = graded(name, items, texts, unsafe=unsafe)
    return {"task": name, "split": split, "problems": count, "right": sum(right), "accuracy": sum(right) / count}


def first_token_mass(model: Loaded, rows: Int[Tensor, "row position"]) -> Float[np.ndarray[Any, Any], "layer head"]:
    """The share of all attention that position 0 receives, mean over rows."""
    with torch.no_grad(), observe(model, norms=False) as seen:
        model(rows)
    mass: np.ndarray[Any, Any] = seen.mass[..., 0].mean(dim=1).float().cpu().numpy()
    return mass


def random_rows(vocab_size: int, *, bos_id: int, rows: int, length: int, seed: int = 0) -> Int[Tensor, "row position"]:
    """Ids drawn evenly from all ordinary tokens, behind a bos."""
    ids = torch.randint(len(SPECIAL_TOKENS), vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))
    ids[:, 0] = bos_id
    return ids


def upper_half(per_head: Float[np.ndarray[Any, Any], "layer head"]) -> Float[np.ndarray[Any, Any], "upper head"]:
    return per_head[per_head.shape[0] // 2 :]


def autoregressive_sinks(model: Loaded, text: Int[Tensor, "row position"]) -> dict[str, Any]:
    """How much position 0 receives on natural text and on random tokens of the same shape."""
    bos_id = model.spec.bos_id or 0
    drawn = random_rows(model.spec.vocab_size, bos_id=bos_id, rows=text.shape[0], length=text.shape[1])
    found: dict[str, Any] = {}
    for name, rows in (("text", text), ("random", drawn)):
        mass = first_token_mass(model, rows.to(model.device))
        upper = upper_half(mass)
        found[name] = {
            "first_token_mass": mass.round(4).tolist(),
            "upper_heads_above_0.3": float((upper >= 0.3).mean()),
            "largest": float(upper.max()),
        }
    return found


def half_written(
    rows: Int[Tensor, "row position"], *, mask_id: int, prompt: int, seed: int = 0
) -> Int[Tensor, "row position"]:
    """Canvases as a generation passes through them: a prompt, then masks at every rate from few to all."""
    count, length = rows.shape
    rate = (torch.arange(count) + 0.5) / count
    drawn = torch.rand((count, length), generator=torch.Generator().manual_seed(seed)) < rate[:, None]
    drawn[:, :prompt] = False
    return rows.masked_fill(drawn, mask_id)


@dataclass(kw_only=True)
class SinkTally:
    """Sinks of a diffusion model at epsilon 3, gathered canvas by canvas."""

    shares: list[Any] = field(default_factory=list)  # of tokens that are sinks, [row]
    tops: list[Any] = field(default_factory=list)  # share of all attention of a head's greatest, [layer, row, head]
    tokens: Counter[int] = field(default_factory=Counter)  # ids under sinks, over layers and heads

    def add(self, received: Float[Tensor, "layer row head key"], canvas: Int[Tensor, "row key"]) -> None:
        sums = received.float().cpu().numpy()
        sinks = detect_sinks(sums, epsilon=3.0)
        self.shares.append(sinks.mean(axis=(0, 2, 3)))
        self.tops.append(sums.max(axis=-1) / sums.shape[-1])
        times, ids = sinks.sum(axis=(0, 2)), canvas.cpu().numpy()  # both [row, key]
        self.tokens += Counter(dict(enumerate(np.bincount(ids.ravel(), weights=times.ravel()).astype(int).tolist())))

    def summary(self, tokenizer: Any) -> dict[str, Any]:
        top = np.concatenate(self.tops, axis=1).mean(axis=1)  # every canvas counts once
        total = self.tokens.total() or 1
        return {
            "sink_share": float(np.concatenate(self.shares).mean()),
            "top_mass": top.round(4).tolist(),
            "upper_heads_above_0.1": float((upper_half(top) >= 0.1).mean()),
            "largest": float(upper_half(top).max()),
            "sink_tokens": {tokenizer.decode([token]): times / total for token, times in self.tokens.most_common(10)},
        }


def diffusion_sinks(model: Loaded, canvases: Int[Tensor, "row position"], *, batch: int = 64) -> dict[str, Any]:
    """How many tokens of these canvases are sinks, and what share of all attention the greatest of a head receives."""
    tally = SinkTally()
    for part in torch.split(canvases, batch):
        with torch.no_grad(), observe(model, norms=False) as seen:
            model(part.to(model.device))
        tally.add(seen.received, part)
    return tally.summary(model.tokenizer)


def generation_sinks(
    model: Loaded, prompts: Int[Tensor, "row position"], *, length: int = 128, batch: int = 16
) -> dict[str, Any]:
    """The same over whole denoising runs from these prompts, one token a step."""
    tally = SinkTally()
    for part in torch.split(prompts, batch):
        with observe(model, norms=False) as seen:
            out = generate(model, part.to(model.device), answering(model, length=length))
        assert out.canvases is not None  # a diffusion model's canvas does not grow
        for canvas, step in zip(out.canvases, seen.steps, strict=False):  # the last canvas is the result
            tally.add(step.received, canvas)
    return {"prompts": len(prompts), "tokens": prompts.shape[1] + length, **tally.summary(model.tokenizer)}
