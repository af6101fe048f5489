"""The hooks of one `compress` context: before and after every attention module, and around the decoder's forward."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any
from weakref import WeakSet

from torch import Tensor, nn

from sinklens.attention.seam import scopes_of
from sinklens.cache import checks
from sinklens.cache.arguments import named, replaced
from sinklens.cache.cut import Cut
from sinklens.cache.layer import Arriving, CutLayer
from sinklens.cache.listening import Listening
from sinklens.cache.masks import check_mask, mask_of, real_tokens
from sinklens.cache.strict import split_forward, splits
from sinklens.errors import UsageError


class Editor:
    """The hooks of one context."""

    def __init__(self, cut: Cut, decoder: nn.Module, listening: Listening | None, marks: Tensor | None) -> None:
        self.cut, self.compression = cut, cut.compression
        self.decoder, self.listening, self.marks = decoder, listening, marks
        self.layers: WeakSet[CutLayer] = WeakSet()
        self.forwards = 0
        self._marked: Tensor | None = None  # of the forward under way
        self._ahead = 0  # tokens of the prompt that are yet to come, in strict mode
        self._real: dict[nn.Module, Tensor | None] = {}

    def forward(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            self.forwards += 1
            given = named(self.decoder, args, kwargs)
            self._marked = self._marks_of(given)
            if self._ahead or not splits(self.compression, given, self.decoder):
                return forward(*args, **kwargs)
            return split_forward(self.decoder, forward, given, self._waiting)

        run.wrapped_by_sinklens = True  # type: ignore[attr-defined]
        return run

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._ahead = 1
        try:
            yield
        finally:
            self._ahead = 0

    def before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The layer is made one that can be cut, and the mask one that fits it."""
        given = named(module, args, kwargs)
        cache = given.get("past_key_values", given.get("past_key_value"))
        if cache is None:
            return None
        checks.check_cache(cache)
        checks.refuse_biases(module, given)
        mask, queries, number = given.get("attention_mask"), given["hidden_states"].shape[1], int(module.layer_idx)
        real = real_tokens(mask)
        self._real[module] = real
        if number in self.compression.skip:
            return None
        layer = self._adopt(cache, number, real)
        check_mask(mask, layer.seen + queries)
        layer.arriving = self._arriving(module, layer, real, rows=given["hidden_states"].shape[0], queries=queries)
        if self.listening is not None:
            self.listening.expect(module, layer, given.get("position_embeddings"))
        if not layer.cut:
            return None
        eager = "eager" in module.config._attn_implementation
        own = mask_of(
            layer,
            mask,
            queries=queries,
            groups=getattr(module, "num_key_value_groups", 1),
            additive=given["hidden_states"].dtype if eager else None,
        )
        return replaced(module, args, kwargs, attention_mask=own)

    def after(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _output: Any) -> None:
        """The layer has served this forward: cut it, if its schedule says so."""
        given = named(module, args, kwargs)
        cache = given.get("past_key_values", given.get("past_key_value"))
        if cache is None:
            return
        number = int(module.layer_idx)
        layer, real = cache.layers[number], self._real.pop(module, None)
        if isinstance(layer, CutLayer) and number not in self.compression.skip:
            queries = None if self.listening is None else partial(self.listening.statistics, module, layer)
            layer.look(self.compression, number, queries=queries, ahead=self._ahead)
        self.cut.note(number, layer, real)

    def close(self) -> None:
        for layer in self.layers:
            layer.is_open = False

    def _adopt(self, cache: Any, number: int, real: Tensor | None) -> CutLayer:
        while len(cache.layers) <= number:  # a cache that grows layer by layer
            cache.layers.append(CutLayer())
        layer = cache.layers[number]
        checks.check_layer(layer, number)
        if not isinstance(layer, CutLayer):
            layer = cache.layers[number] = CutLayer.of(layer, real)
        order = self.compression.order
        needs = {"received": "received", "fastgen": "marked"}.get(order) if isinstance(order, str) else None
        unknown = needs is not None and needs not in layer.columns
        if layer.held and (unknown or (self.compression.order == "expected" and layer.queries is None)):
            raise UsageError(
                f"order={self.compression.order!r} follows a cache from its first token, and this one holds "
                f"{layer.held} entries from elsewhere; run the prompt inside the context"
            )
        layer.is_open = True
        self.layers.add(layer)
        return layer

    def _arriving(
        self, module: nn.Module, layer: CutLayer, real: Tensor | None, *, rows: int, queries: int
    ) -> Arriving:
        if real is not None:
            real = real[:, layer.seen : layer.seen + queries].expand(rows, queries)
            real = None if bool(real.all()) else real
        return Arriving(
            real=real,
            marked=None if self._marked is None else self._marked[:, :queries],  # of the first part, in strict mode
            wants_received=self.compression.order == "received",
            on_canvas=any(scope is not self.listening for scope in scopes_of(module)),
        )

    def _marks_of(self, given: dict[str, Any]) -> Tensor | None:
        if self.marks is None:
            return None
        ids = given.get("input_ids")
        if ids is None:
            raise UsageError("order='fastgen' reads token ids; call the model with input_ids, not inputs_embeds")
        self.marks = self.marks.to(ids.device)
        marked: Tensor = self.marks[ids.clamp(max=self.marks.numel() - 1)] & (ids < self.marks.numel())
        return marked
