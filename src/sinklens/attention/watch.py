"""What observing and intervening share: the doors into one model, and a count of its forwards and layers.

A step is the sampler's own number where there is one, else the count of forwards of the watched model. A layer is a
place where attention is computed, numbered in the order places first run; self- and cross-attention are numbered apart.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from sinklens.attention import routes, torch_modules
from sinklens.attention.call import AttentionCall, Site
from sinklens.attention.clock import StepNumber, current_step
from sinklens.attention.huggingface import uses_interface
from sinklens.attention.listen import Listener
from sinklens.attention.padding import PaddingNotes, fits, real_positions, sequence_length
from sinklens.attention.seam import Kind, recomputing
from sinklens.attention.wrapping import Forward, wrapped
from sinklens.errors import ObservationError, UsageError


class Watch:
    """Counts the forwards of one model, numbers its layers, and knows the padding of the forward under way."""

    def __init__(
        self,
        model: nn.Module,
        *,
        attention_mask: Tensor | None = None,
    ) -> None:
        if attention_mask is not None and attention_mask.dim() != 2:
            raise UsageError(
                f"attention_mask has shape {tuple(attention_mask.shape)}; expected [batch, key], 1 for real tokens"
            )
        self.model = model
        self.forwards = 0
        self.calls = 0
        self.on_end: Callable[[], None] | None = None  # called after every forward
        self._names = {module: name for name, module in model.named_modules()}
        self._given = None if attention_mask is None else _beside_the_weights(attention_mask.bool(), model)
        self._given_fits = False  # some call was of its sequence
        self._longest = ("", 0, 0)  # what was looked at last, for a mask that does not fit: module, rows, length
        self._notes = PaddingNotes(model)
        self._running = False  # the model itself is
        self._open = False  # a forward is under way, begun by the model or by a part of it called alone
        self._seen: Counter[tuple[nn.Module, Kind]] = Counter()
        self._layers: dict[Kind, dict[tuple[nn.Module, int], int]] = {"self": {}, "cross": {}}

    @contextmanager
    def doors(self) -> Iterator[None]:
        """All three doors into the model, open until the context closes."""
        _refuse_compiled(self.model)
        with ExitStack() as stack:
            stack.callback(self._let_go)
            stack.enter_context(routes.routed(self.model))
            stack.enter_context(self._notes.taken())
            if isinstance(self.model, nn.TransformerEncoderLayer):  # a hook would switch its fast path off
                stack.enter_context(wrapped(self._counted(torch_modules.wrappers(self.model))))
            else:
                stack.enter_context(wrapped(torch_modules.wrappers(self.model)))
                before = self.model.register_forward_pre_hook(lambda *_: self._begins(), prepend=True)
                stack.callback(before.remove)
                after = self.model.register_forward_hook(lambda *_: self._ends(), always_call=True)
                stack.callback(after.remove)
            stack.enter_context(wrapped(_listeners(self.model)))
            yield
            self._close()

    def _let_go(self) -> None:
        """Of whoever is called after forwards, so that it ends with its context and not when memory is tidied up."""
        self.on_end = None

    def _counted(
        self, makers: dict[nn.Module, Callable[[Forward], Forward]]
    ) -> dict[nn.Module, Callable[[Forward], Forward]]:
        make = makers[self.model]

        def counted(forward: Forward) -> Forward:
            inner = make(forward)

            def run(*args: Any, **kwargs: Any) -> Any:
                self._begins()
                try:
                    return inner(*args, **kwargs)
                finally:
                    self._ends()

            return run

        return {**makers, self.model: counted}

    def _begins(self) -> None:
        # The model does not run inside itself: if it seems to, an interrupt has kept it from ending.
        self._notes.forget()
        self._start()
        self._running = True

    def _ends(self) -> None:
        self._running = False
        self._close()

    def _start(self) -> None:
        self._close()
        self._open = True
        self._seen.clear()
        self.forwards += 1

    def _close(self) -> None:
        if self._open and self.on_end is not None:
            self.on_end()
        self._open = False
        if self._given is not None and self.calls and not self._given_fits:
            given, self._given = self._given, None
            raise UsageError(
                f"attention_mask has shape {tuple(given.shape)}; the sequence of {self._longest[0]} is "
                f"{self._longest[1]} x {self._longest[2]}"
            )

    def describe(self, call: AttentionCall, owner: nn.Module, kind: Kind) -> AttentionCall:
        """The call with its site and padding."""
        place = (owner, kind)
        alone = not self._open or (self._seen[place] and not self._running)
        if alone and not recomputing():
            self._start()  # a part of the model was called by itself
        layers = self._layers[kind]
        turn = 0 if recomputing() else self._seen[place]
        layer = layers.setdefault((owner, turn), len(layers))
        self._seen[place] += 1
        self.calls += 1
        site = Site(step=self.step(), layer=layer, module=self._names.get(owner, ""), kind=kind)
        own = self._own_mask(call, site)
        real_keys, real_queries = real_positions(call, kind, own, self._notes.other())
        return replace(call, site=site, real_keys=real_keys, real_queries=real_queries)

    @property
    def padded(self) -> bool:
        """A mask was given, whatever the model's call says."""
        return self._given is not None

    def _own_mask(self, call: AttentionCall, site: Site) -> Tensor | None:
        """The padding of the sequence that looks: as given, grown by what was generated, or from the model's call."""
        if self._given is None or site.kind == "cross":
            return self._notes.own()
        length = sequence_length(call)
        self._longest = (site.module or "the model", call.query.shape[0], length)
        grows = self._given_fits or current_step() is not None
        mask = F.pad(self._given, (0, length - self._given.shape[1]), value=True) if grows else self._given
        self._given_fits = self._given_fits or fits(mask, call, length)
        return mask

    def step(self) -> StepNumber:
        """The sampler's step, or the count of forwards."""
        step = current_step()
        return StepNumber(max(0, self.forwards - 1)) if step is None else step

    def canvas(self, call: AttentionCall) -> int | None:
        """How wide the canvas is where the call has lost its tail: padding that a nested batch leaves out."""
        assert call.site is not None
        mask = self._notes.own()
        if mask is None or call.real_keys is None or call.site.kind == "cross" or call.key_positions is not None:
            return None
        return mask.shape[1]


def _beside_the_weights(mask: Tensor, model: nn.Module) -> Tensor:
    """On the card, if they are on one: nothing can be copied to it while a graph is captured."""
    first = next(model.parameters(), None)
    return mask if first is None or not first.is_cuda else mask.to(first.device)


def _refuse_compiled(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod"):
            raise ObservationError(
                f"{name or 'the model'} is compiled by torch.compile, where sinklens cannot look; observe the "
                "module it was made from (its _orig_mod), uncompiled"
            )


def _listeners(model: nn.Module) -> dict[nn.Module, Callable[[Forward], Forward]]:
    """Listen inside every module whose attention may be its own affair: not torch's, not transformers', not ours."""

    def listening(module: nn.Module) -> Callable[[Forward], Forward]:
        def make(forward: Forward) -> Forward:
            def run(*args: Any, **kwargs: Any) -> Any:
                with Listener(module):
                    return forward(*args, **kwargs)

            return run

        return make

    own = [module for module in model.modules() if _may_call_attention(module)]
    return {module: listening(module) for module in (*own, *_beside_the_interface(model))}


def _may_call_attention(module: nn.Module) -> bool:
    home = type(module).__module__
    if home.startswith(("torch.nn.", "sinklens.models.")):
        return False
    return not uses_interface(module)


def _beside_the_interface(model: nn.Module) -> Iterator[nn.Module]:
    """Attention modules of transformers models that do not dispatch on the interface (Falcon)."""
    for module in model.modules():
        can_set = getattr(type(module), "_can_set_attn_implementation", None)
        if uses_interface(module) and can_set is not None and not can_set():
            yield from (part for part in module.modules() if "Attention" in type(part).__name__)
