"""Orders as kvpress presses, and kvpress presses as orders. Optional: importing kvpress patches transformers globally.

    press = press_of("low", compression_ratio=0.5, skip=(0, 1))      # with press(model): ...
    compress(model, Compression(order=from_press(KnormPress()), keep=128))

kvpress keeps floor(n (1 - ratio)) entries, where a share on sinklens's command line is rounded up. It asks a press
once, after the prefill of each layer, and gives it no attention unless the model runs eager attention.
"""

from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sinklens.cache.entries import Entries
from sinklens.cache.scores import score
from sinklens.cache.settings import ORDERS
from sinklens.errors import UsageError, choose

_NEEDS = {
    "received": "attention weights, which kvpress hands over under eager attention only",
    "expected": "the queries; kvpress has ExpectedAttentionPress",
    "fastgen": "token ids, which kvpress does not hand over",
}


def press_of(order: str, *, compression_ratio: float = 0.0, skip: tuple[int, ...] = (0, 1), seed: int = 0) -> Any:
    """A kvpress ScorerPress that scores by `order`; layers in `skip` are left alone.

    Wrappers that ask for scores only (AdaKVPress, KeyRerotationPress and others) do not see the skipped layers: they
    compress those too.
    """
    choose("order", order, ORDERS)
    if order in _NEEDS:
        raise UsageError(f"order={order!r} cannot be a press: it needs {_NEEDS[order]}")
    base = _scorer_press()

    class OrderPress(base):  # type: ignore[misc, valid-type]
        """An order of sinklens."""

        def score(  # noqa: PLR0917 (kvpress's own signature)
            self, module: Any, hidden_states: Any, keys: Tensor, values: Tensor, attentions: Any, kwargs: Any
        ) -> Tensor:
            return score(order, _entries(module, keys, values), seed=seed, event=keys.shape[2])

        def compress(  # noqa: PLR0917
            self, module: Any, hidden_states: Any, keys: Tensor, values: Tensor, attentions: Any, kwargs: Any
        ) -> tuple[Tensor, Tensor]:
            if int(module.layer_idx) in skip:
                return keys, values
            kept: tuple[Tensor, Tensor] = super().compress(module, hidden_states, keys, values, attentions, kwargs)
            return kept

    OrderPress.__name__ = OrderPress.__qualname__ = f"{order.title().replace('_', '')}Press"
    return OrderPress(compression_ratio=compression_ratio)


def from_press(press: Any) -> Callable[[Entries], Float[Tensor, "batch kv_head entry"]]:
    """The scores of a kvpress ScorerPress, as an order for Compression.

    Of a press that reads keys and values (KnormPress, KeyDiffPress, ...). One that asks the attention module, hidden
    states or attention weights is refused when it does; so is a batch with padding, which presses know nothing of.
    """
    if not isinstance(press, _scorer_press()):
        raise UsageError(f"{press!r} is no kvpress ScorerPress, so it has no scores; pass KnormPress() for instance")
    name = type(press).__name__

    def order(entries: Entries) -> Tensor:
        if not bool(entries.real.all()):
            raise UsageError(
                f"{name} of kvpress does not know padding; compress one row at a time, or by another order"
            )
        module = SimpleNamespace(layer_idx=entries.layer, head_dim=entries.keys.shape[-1])
        try:
            scores = press.score(module, None, entries.keys, entries.values, None, {})
        except (AttributeError, AssertionError, KeyError, TypeError) as error:
            raise UsageError(
                f"{name} of kvpress asks for more than keys and values ({error}); it works as a press only"
            ) from error
        found: Tensor = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return found

    order.__name__ = name
    return order


def _entries(module: Any, keys: Tensor, values: Tensor) -> Entries:
    where = torch.arange(keys.shape[2], device=keys.device).expand(keys.shape[:3])
    return Entries(
        layer=int(module.layer_idx), keys=keys, values=values, positions=where, real=torch.ones_like(where).bool()
    )


def _scorer_press() -> Any:
    try:
        return import_module("kvpress").ScorerPress
    except (ImportError, AttributeError) as error:
        raise UsageError(
            "this needs the kvpress package, whose pins want an environment of its own (`make test-kvpress` makes "
            f"one): {error}"
        ) from error
