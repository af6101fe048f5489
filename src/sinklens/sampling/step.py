"""What a sampler yields, what a finished run is, and what makes an object a sampler.

A sampler is any object with `run`: it gets the model, the prompt's ids and the padding, and yields one
`Step` for each forward it runs. Nothing else is asked of it, so a sampler of your own is used like the ones
here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float32, Int
from torch import Tensor

from sinklens.models.language_model import LanguageModel

SHOWN_ROWS, SHOWN_LETTERS = 2, 60  # of the text of a Generation, when it is printed


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Step:
    """One forward and what was decided from it. Its tensors are snapshots: later steps leave them alone."""

    index: int  # 0, 1, 2, ... in the order the forwards ran
    canvas: Int[Tensor, "batch position"]  # ids after the step; autoregressive: the ids so far
    committed: Bool[Tensor, "batch position"]  # got their token in this step
    confidence: Float32[Tensor, "batch position"]  # what the choice was made by; NaN where there is none
    block: range | None = None  # positions of the block being filled, where there are blocks
    computed: range | None = None  # positions the forward computed, where a cache holds the others; None: all

    def __repr__(self) -> str:
        """Shapes in place of tensors: a notebook shows what is last in a cell."""
        block = "" if self.block is None else f", block={self.block}"
        return (
            f"Step(index={self.index}, canvas={list(self.canvas.shape)}, committed={int(self.committed.sum())}{block})"
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Generation:
    """A finished run.

    `ids` is the last canvas. Positions that an early stop left undecided behind a row's first eos are
    filled with pad (eos where the model has no pad); `canvases` keeps them as they were.
    """

    ids: Int[Tensor, "batch position"]  # prompt + length
    canvases: Int[Tensor, "canvas batch position"] | None  # before step 0, then after each; None: autoregressive
    lengths: Int[Tensor, " batch"]  # generated tokens up to and including the first eos, else all
    text: list[str] | None  # None: the model has no tokenizer
    steps: int  # forwards that ran
    prompt_length: int  # padding included

    def __repr__(self) -> str:
        """Shapes in place of tensors, and the beginning of the text."""
        canvases = None if self.canvases is None else list(self.canvases.shape)
        text = None if self.text is None else [_begin(row) for row in self.text[:SHOWN_ROWS]]
        more = "" if self.text is None or len(self.text) <= SHOWN_ROWS else f" and {len(self.text) - SHOWN_ROWS} more"
        return (
            f"Generation(ids={list(self.ids.shape)}, canvases={canvases}, steps={self.steps}, "
            f"prompt_length={self.prompt_length}, text={text}{more})"
        )


def _begin(text: str) -> str:
    return text if len(text) <= SHOWN_LETTERS else text[: SHOWN_LETTERS - 1] + "…"


@runtime_checkable
class Sampler(Protocol):
    """Anything that turns a model and a prompt into steps."""

    def run(
        self,
        model: LanguageModel,
        prompt: "Int[Tensor, 'batch position']",
        attention_mask: "Int[Tensor, 'batch position'] | None" = None,
    ) -> Iterator[Step]:
        """Steps of a run from `prompt`; `attention_mask` covers the prompt: 0 = padding, None: none."""
        ...
