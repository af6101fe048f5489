"""From what a caller calls a prompt to ids [batch, position] and padding, with every refusal in one place.

Accepted: a tensor of ids (one row or several), a list of ids, a list of such lists, a string, a list of
strings. Rows of different length are padded on the left.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from sinklens.errors import UsageError
from sinklens.models.inputs import check_zeros_and_ones
from sinklens.models.language_model import LanguageModel
from sinklens.sampling.prompt_list import spoken
from sinklens.sampling.special_ids import fill_id

FAR = 16  # times the positions that a model promises

Prompt = Tensor | str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | Sequence[Tensor]
Padding = Tensor | Sequence[int] | Sequence[Sequence[int]]  # 1 = real, of the shape of the prompt


# What comes from callers is annotated as anything, because it is checked here, with a message.
def read_prompt(
    model: LanguageModel, prompt: Any, attention_mask: Any = None
) -> "tuple[Int[Tensor, 'batch position'], Int[Tensor, 'batch position'] | None]":
    """Ids on the model's device, and the padding (1 = real; None: there is none)."""
    if isinstance(prompt, Tensor):
        ids, padding = _rows_of(prompt), None
    else:
        ids, padding = _pad_left(model, _id_lists(model, prompt))
    if attention_mask is not None:
        if padding is not None:
            raise UsageError(
                "attention_mask came with rows of different length, which are padded here; pass one or the other"
            )
        padding = _read_mask(attention_mask, ids)
    _check_range(model, int(ids.min()), int(ids.max()))
    if padding is not None and bool(padding.all()):
        padding = None
    return ids.to(model.device), None if padding is None else padding.to(model.device)


def _rows_of(ids: Tensor) -> Int[Tensor, "batch position"]:
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise UsageError(f"prompt ids are {ids.dtype}; expected an integer dtype such as torch.int64")
    if ids.ndim not in (1, 2):
        raise UsageError(f"prompt ids have shape {tuple(ids.shape)}; expected [batch, position] or [position]")
    if ids.numel() == 0:
        raise UsageError(
            f"the prompt is empty (shape {tuple(ids.shape)}); pass at least one id a row, bos for instance"
        )
    return (ids if ids.ndim == 2 else ids.unsqueeze(0)).long()


def _id_lists(model: LanguageModel, prompt: Any) -> list[list[int]]:
    if isinstance(prompt, str):
        prompt = [prompt]
    elif not isinstance(prompt, Sequence):
        raise UsageError(f"the prompt is of type {type(prompt).__name__}; expected ids, a string, or a list of either")
    elif all(isinstance(item, int) for item in prompt):
        prompt = [prompt]
    return [_encode(model, row) if isinstance(row, str) else _integers(row) for row in prompt]


def _integers(row: object) -> list[int]:
    if isinstance(row, Tensor):
        row = row.tolist()
    if not isinstance(row, Sequence) or not all(isinstance(i, int) and not isinstance(i, bool) for i in row):
        raise UsageError(f"a prompt row is {row!r}; expected a string or a list of integer ids, the same in all rows")
    return list(row)


def _encode(model: LanguageModel, text: str) -> list[int]:
    if model.tokenizer is None:
        raise UsageError(
            "the prompt is text, but this model has no tokenizer; pass ids, or give it one (models.load.wrap)"
        )
    return list(model.tokenizer.encode(spoken(text)))


def _pad_left(
    model: LanguageModel, rows: list[list[int]]
) -> "tuple[Int[Tensor, 'batch position'], Int[Tensor, 'batch position'] | None]":
    if not rows or not all(rows):
        empty = next((number for number, row in enumerate(rows) if not row), 0)
        raise UsageError(f"the prompt is empty (row {empty} has no ids); pass at least one id a row, bos for instance")
    width = max(map(len, rows))
    _check_length(model, width)
    _check_range(model, min(map(min, rows)), max(map(max, rows)))  # before a tensor, which holds 64 bits
    fill = fill_id(model.spec)
    ids = torch.tensor([[fill] * (width - len(row)) + row for row in rows])
    if all(len(row) == width for row in rows):
        return ids, None
    return ids, torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])


def _check_length(model: LanguageModel, length: int) -> None:
    """Rotary positions go on past what a model promises; a text of a megabyte would keep a machine busy for days."""
    promised = model.spec.max_length
    if promised is not None and length > FAR * promised:
        raise UsageError(
            f"the prompt has {length} tokens; this model promises {promised} positions, and more than {FAR} times as "
            "many are refused: shorten it"
        )


def _read_mask(attention_mask: Any, ids: Int[Tensor, "batch position"]) -> Int[Tensor, "batch position"]:
    mask = torch.as_tensor(attention_mask)
    mask = mask.unsqueeze(0) if mask.ndim == 1 else mask
    if mask.shape != ids.shape:
        raise UsageError(
            f"attention_mask has shape {tuple(mask.shape)}; expected the prompt's, {tuple(ids.shape)}: what "
            "is generated is added to it here"
        )
    check_zeros_and_ones(mask)
    if not bool(mask.any(dim=1).all()):
        raise UsageError("a prompt row is padding only (attention_mask is 0 throughout); give it at least one real id")
    return mask.long()


def _check_range(model: LanguageModel, lowest: int, highest: int) -> None:
    if lowest < 0 or highest >= model.spec.vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise UsageError(
            f"prompt id {wrong} is out of range; this model's ids go from 0 to {model.spec.vocab_size - 1}"
        )
