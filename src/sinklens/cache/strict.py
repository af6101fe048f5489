"""The strict mode: the prompt without its last token fills the cache, which is cut; then the last token runs.

Without it the first answer token is chosen from the full cache: the forward that fills it also gives its logits.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from sinklens.cache.arguments import tokens
from sinklens.cache.settings import Compression
from sinklens.errors import UsageError


def splits(compression: Compression, given: dict[str, Any], decoder: Any) -> bool:
    """Whether this forward fills a cache with a prompt of which something will be evicted."""
    if not compression.strict:
        return False
    cache, uses = given.get("past_key_values"), given.get("use_cache")
    if cache is None and not (getattr(decoder.config, "use_cache", True) if uses is None else uses):
        return False
    if cache is not None and int(cache.get_seq_length()) > 0:
        return False
    return _longest(given) > int(compression.keep)


def _longest(given: dict[str, Any]) -> int:
    """Real tokens of the longest row."""
    mask = given.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return int((mask != 0).sum(1).max())
    sequence: Tensor = given["input_ids"] if given.get("input_ids") is not None else given["inputs_embeds"]
    return sequence.shape[1]


def split_forward(
    decoder: Any,
    forward: Callable[..., Any],
    given: dict[str, Any],
    waiting: Callable[[], AbstractContextManager[None]],
) -> Any:
    """One forward as two; logits are those of both. `waiting` is open during the first."""
    mask, wanted = given.get("attention_mask"), given.get("logits_to_keep", 0)
    if given.get("labels") is not None or isinstance(wanted, Tensor) or (mask is not None and mask.dim() != 2):
        raise UsageError(
            "strict runs the prompt in two parts, and takes neither labels, nor logits_to_keep as indices, nor a mask "
            "of its own; pass attention_mask [batch, position], 1 for real tokens"
        )
    first = tokens(given, None, -1)
    if mask is not None:
        first["attention_mask"] = mask[:, :-1]
        if not bool(mask[:, -1].all()):
            raise UsageError("strict feeds the last token of every row by itself; pad rows on the left")
    with waiting():
        before = forward(**first)
    # Called as a whole: whoever counts forwards counts this one.
    after = decoder(**{**tokens(given, -1, None), "past_key_values": before.past_key_values})
    if getattr(after, "logits", None) is not None:
        after.logits = torch.cat([before.logits, after.logits], dim=1)[:, -wanted if wanted else 0 :]
    if getattr(after, "last_hidden_state", None) is not None:
        after.last_hidden_state = torch.cat([before.last_hidden_state, after.last_hidden_state], dim=1)
    return after
