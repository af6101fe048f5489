"""Which positions are real: read from the masks that a model's own modules are called with.

Every module whose forward takes such a mask is noted while it runs. For an attention call the nearest enclosing module
counts: the text tower of a two-tower model, the decoder of an encoder-decoder, the model inside a wrapper. A mask
counts only if it is as long as the sequence of the call; one of another resolution says nothing about it.
"""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from jaxtyping import Bool, Int
from torch import Tensor, nn

from sinklens.attention.call import AttentionCall
from sinklens.attention.seam import Kind

OWN = ("attention_mask", "decoder_attention_mask", "src_key_padding_mask", "key_padding_mask")
OTHER = ("encoder_attention_mask",)
_TRUE_IS_PADDING = ("src_key_padding_mask", "key_padding_mask")


class PaddingNotes:
    """The masks of the modules that are running, outermost first."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._running: list[tuple[nn.Module, dict[str, Tensor | None]]] = []

    @contextmanager
    def taken(self) -> Iterator[None]:
        with ExitStack() as stack:
            for module in self._model.modules():
                places = _mask_parameters(module)
                if places:
                    before = module.register_forward_pre_hook(
                        lambda module, args, kwargs, places=places: self._enter(module, places, args, kwargs),
                        with_kwargs=True,
                        prepend=True,
                    )
                    stack.callback(before.remove)
                    after = module.register_forward_hook(lambda module, *_: self._leave(module), always_call=True)
                    stack.callback(after.remove)
            yield

    def _enter(self, module: nn.Module, places: dict[str, int], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found: dict[str, Tensor | None] = {}
        for name, index in places.items():
            mask = kwargs.get(name, args[index] if index < len(args) else None)
            if mask is None and not _is_part(module):
                found[name] = None
            elif isinstance(mask, Tensor) and mask.dim() == 2:  # wider ones are made for a layer, from these
                found[name] = mask == 0 if name in _TRUE_IS_PADDING else mask != 0
        self._running.append((module, found))

    def _leave(self, module: nn.Module) -> None:
        for depth, (running, _) in enumerate(self._running):
            if running is module:
                del self._running[depth:]
                return

    def forget(self) -> None:
        """Before a forward of the whole model: nothing is running, whatever an interrupt has left."""
        self._running.clear()

    def own(self) -> Tensor | None:
        """The mask of the sequence that looks."""
        return self._nearest(OWN)

    def other(self) -> Tensor | None:
        """The mask of the sequence that is looked at by cross-attention."""
        return self._nearest(OTHER)

    def _nearest(self, names: tuple[str, ...]) -> Tensor | None:
        for _, found in reversed(self._running):
            known = [found[name] for name in names if name in found]
            masks = [mask for mask in known if mask is not None]
            if known:
                return masks[0] if masks else None
        return None


def real_positions(
    call: AttentionCall, kind: Kind, own: Bool[Tensor, "rows own"] | None, other: Bool[Tensor, "rows other"] | None
) -> tuple[Bool[Tensor, "batch key"] | None, Bool[Tensor, "batch query"] | None]:
    """Real keys and real queries of a call; None where nothing is known."""
    keys, queries = call.real_keys, call.real_queries
    if own is not None and fits(own, call, sequence_length(call)):
        own = own[: call.query.shape[0]]
        queries = _read(own, call.where_queries()) if queries is None else queries
        if keys is None and kind == "self":
            keys = _read(own, call.where_keys())
    if keys is None and kind == "cross" and other is not None and fits(other, call, call.key.shape[2]):
        keys = _read(other[: call.query.shape[0]], call.where_keys())
    return keys, queries


def fits(mask: Bool[Tensor, "rows position"], call: AttentionCall, length: int) -> bool:
    """True when a mask is of this sequence: as long, and with as many rows (under guidance, the first ones)."""
    return mask.shape[1] == length and mask.shape[0] in (call.query.shape[0], 2 * call.query.shape[0])


def sequence_length(call: AttentionCall) -> int:
    """How long the sequence of the queries is: they are its last ones."""
    if call.query_positions is None and call.key_positions is None:
        return max(call.query.shape[2], call.key.shape[2])
    where = call.where_queries()
    return int(where[-1]) + 1 if where.numel() else 0


def _read(mask: Bool[Tensor, "rows position"], where: Int[Tensor, " n"]) -> Bool[Tensor, "rows n"]:
    """The mask at some positions. A cache may hold room beyond the sequence; nobody sees it."""
    length = mask.shape[1]
    return mask.to(where.device)[:, where.clamp(max=length - 1)] | (where >= length)


def _is_part(module: nn.Module) -> bool:
    """A layer of a transformers model: without a mask of its own, that of the model holds."""
    return type(module).__module__.startswith("transformers.") and not hasattr(module, "main_input_name")


def _mask_parameters(module: nn.Module) -> dict[str, int]:
    """Names and places of the masks among the parameters of a module's forward."""
    if isinstance(module, (nn.TransformerEncoderLayer, nn.MultiheadAttention)):
        return {}  # hooks would switch their fast path off; torch_modules reads their padding itself
    try:
        parameters = list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        return {}
    return {name: parameters.index(name) for name in (*OWN, *OTHER) if name in parameters}
