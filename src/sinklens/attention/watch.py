"""What observing and intervening share: the doors into one model, and a count of its forwards and layers.

A step is the sampler's own number where there is one, else the count of forwards of the watched model. A layer is a
place where attention is computed, numbered in the order places first run; self- and cross-attention are numbered apart.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from jaxtyping import Bool, Int
from torch import Tensor, nn

from sinklens.attention import huggingface, torch_modules
from sinklens.attention.call import AttentionCall, Site
from sinklens.attention.clock import StepNumber, current_step
from sinklens.attention.listen import Listener
from sinklens.attention.seam import Kind
from sinklens.errors import UsageError

# Arguments of a model's forward that say which positions are real (or, True: which are padding).
_REAL = ("attention_mask", "decoder_attention_mask", "encoder_attention_mask")
_PADDING = ("src_key_padding_mask", "key_padding_mask")


class Watch:
    """Counts the forwards of one model, numbers its layers, and knows the padding of the forward under way."""

    def __init__(self, model: nn.Module, *, attention_mask: Int[Tensor, "batch key"] | None = None) -> None:
        if attention_mask is not None and attention_mask.dim() != 2:
            raise UsageError(
                f"attention_mask has shape {tuple(attention_mask.shape)}; expected [batch, key], 1 for real tokens"
            )
        self.model = model
        self.forwards = 0
        self.on_end: Callable[[], None] | None = None  # called after every forward
        self._names = {module: name for name, module in model.named_modules()}
        self._given = None if attention_mask is None else attention_mask.bool()
        self._masks: dict[str, Tensor] = {}
        self._depth = 0  # of nested calls of the model itself
        self._open = False  # a forward is under way, begun by the model or by a part of it called alone
        self._calls: Counter[tuple[nn.Module, Kind]] = Counter()
        self._layers: dict[Kind, dict[tuple[nn.Module, int], int]] = {"self": {}, "cross": {}}

    @contextmanager
    def doors(self) -> Iterator[None]:
        """All three doors into the model, open until the context closes."""
        with ExitStack() as stack:
            stack.enter_context(huggingface.routed(self.model))
            stack.enter_context(torch_modules.overheard(self.model, self._around))
            stack.enter_context(_listening(self.model))
            if not isinstance(self.model, torch_modules.WATCHED):  # those tell through _around
                before = self.model.register_forward_pre_hook(self._begins, prepend=True, with_kwargs=True)
                stack.callback(before.remove)
                after = self.model.register_forward_hook(lambda *_: self._ends(), always_call=True)
                stack.callback(after.remove)
            yield
            self._close()

    def _around(self, model: nn.Module, forward: Callable[[], Any]) -> Any:
        self._begins(model, (), {})
        try:
            return forward()
        finally:
            self._ends()

    def _begins(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._depth == 0:
            self._start()
            self._masks = _padding_arguments(model, args, kwargs)
        self._depth += 1

    def _ends(self) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth == 0:
            self._close()

    def _start(self) -> None:
        self._close()
        self._open = True
        self._calls.clear()
        self._masks = {}
        self.forwards += 1

    def _close(self) -> None:
        if self._open and self.on_end is not None:
            self.on_end()
        self._open = False

    def describe(self, call: AttentionCall, owner: nn.Module, kind: Kind) -> AttentionCall:
        """The call with its site and padding."""
        place = (owner, kind)
        if self._depth == 0 and (not self._open or self._calls[place]):
            self._start()  # a part of the model was called by itself
        layers = self._layers[kind]
        layer = layers.setdefault((owner, self._calls[place]), len(layers))
        self._calls[place] += 1
        name = self._names.get(owner, "")
        site = Site(step=self.step(), layer=layer, module=name, kind=kind)
        real_keys, real_queries = self._real(call, name, kind)
        return replace(call, site=site, real_keys=real_keys, real_queries=real_queries)

    def step(self) -> StepNumber:
        """The sampler's step, or the count of forwards."""
        step = current_step()
        return StepNumber(self.forwards - 1) if step is None else step

    def _real(self, call: AttentionCall, name: str, kind: Kind) -> tuple[Tensor | None, Tensor | None]:
        """Which keys and which queries are real; None: all, as far as is known."""
        keys, queries = call.real_keys, call.real_queries
        own = self._own_mask(name, kind)
        looked_at = own
        if kind == "cross":
            looked_at = self._masks.get("encoder_attention_mask", self._masks.get("attention_mask"))
        if keys is None and looked_at is not None:
            keys = _at(looked_at, call.where_keys(), call)
        if queries is None and own is not None:
            queries = _at(own, call.where_queries(), call)
        return keys, queries

    def canvas(self, call: AttentionCall) -> int | None:
        """How wide the canvas is, where padding tells; a nested batch has lost its tail."""
        assert call.site is not None
        mask = self._own_mask(call.site.module, call.site.kind)
        return None if mask is None or call.site.kind == "cross" else mask.shape[1]

    def _own_mask(self, name: str, kind: Kind) -> Tensor | None:
        """The padding of the sequence that the queries belong to."""
        if kind == "self" and self._given is not None:
            return self._given
        in_decoder = "decoder" in name.split(".")
        return self._masks.get("decoder_attention_mask" if in_decoder else "attention_mask")


def _at(
    mask: Bool[Tensor, "rows position"], positions: Int[Tensor, " n"], call: AttentionCall
) -> Bool[Tensor, "batch n"] | None:
    """A mask over the canvas, read at some positions; positions it does not reach are real."""
    rows = call.query.shape[0]
    if mask.shape[0] < rows:  # of another batch
        return None
    mask = mask[:rows].to(positions.device)
    real = mask[:, positions.clamp(max=mask.shape[1] - 1)]
    return real | (positions >= mask.shape[1])


def _padding_arguments(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Tensor]:
    """The two-dimensional masks among the arguments of a forward, True for real positions, all-true ones left out."""
    try:
        given = inspect.signature(model.forward).bind_partial(*args, **kwargs).arguments
    except TypeError:  # the model will complain in its own words
        return {}
    given = {**given, **given.get("kwargs", {})}
    found = {}
    for name in _REAL + _PADDING:
        mask = given.get(name)
        if isinstance(mask, Tensor) and mask.dim() == 2:
            real = mask == 0 if name in _PADDING else mask != 0
            if not bool(real.all()):
                found["attention_mask" if name in _PADDING else name] = real
    return found


@contextmanager
def _listening(model: nn.Module) -> Iterator[None]:
    """Listen inside every module whose attention may be its own affair: not torch's, not transformers', not ours."""
    listeners: list[Listener] = []  # of the modules that are running, outermost first

    def leave(*_: Any) -> None:
        listeners.pop().__exit__(None, None, None)

    def enter(module: nn.Module, *_: Any) -> None:
        listeners.append(Listener(module))
        listeners[-1].__enter__()

    with ExitStack() as stack:
        for module in model.modules():
            if _may_call_attention(module):
                stack.callback(module.register_forward_pre_hook(enter).remove)
                stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        try:
            yield
        finally:
            while listeners:  # an interrupt (Ctrl-C) runs no hooks
                leave()


def _may_call_attention(module: nn.Module) -> bool:
    home = type(module).__module__
    if home.startswith(("torch.nn.", "sinklens.models.")):
        return False
    if not huggingface.uses_interface(module):
        return True
    can_set = getattr(type(module), "_can_set_attn_implementation", None)
    return can_set is not None and not can_set()
