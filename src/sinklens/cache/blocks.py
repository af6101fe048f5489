"""Keys and values of a canvas, kept between the steps of a diffusion run.

A diffusion model sees every position from every other, so a key changes whenever a token anywhere does, and held keys
are stale from the next commit on. How stale they may get is the caller's choice: a refresh computes the whole canvas,
exactly, and holds the keys and values of all positions outside a span; until the next refresh a forward computes the
span alone, against the held entries and its own.

Of the prompt fewer entries may be held (evicted_prompt.py), other ones in every head. Attention then runs on what is
there. Whoever watches or changes attention sees the whole canvas all the same: every key at its own place, and the
evicted ones hidden from the heads that lack them.
"""

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from sinklens.attention.call import AttentionCall
from sinklens.attention.seam import attend, scopes_of
from sinklens.cache.evicted_prompt import Eviction, KeptPrompt
from sinklens.errors import UsageError
from sinklens.kernels.forward import run_attention
from sinklens.kernels.mask import AnyMask
from sinklens.kernels.scores import Scores

KeysAndValues = tuple[Float[Tensor, "batch kv_head _ dim"], Float[Tensor, "batch kv_head _ dim"]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Own:
    """What a forward computes itself in one layer, and what its queries may see of the canvas."""

    query: Float[Tensor, "batch head query dim"]
    key: Float[Tensor, "batch kv_head query dim"]
    value: Float[Tensor, "batch kv_head query dim"]
    mask: AnyMask | None  # its last axis is the canvas
    real_keys: Bool[Tensor, "batch canvas"] | None  # False: padding
    real_queries: Bool[Tensor, "batch query"] | None
    output_weight: Float[Tensor, "width features"] | None

    def call(self, span: range | None = None, canvas: KeysAndValues | None = None) -> AttentionCall:
        """The attention call: of the whole canvas, or of a span of queries on the `canvas` of keys and values."""
        key, value = (self.key, self.value) if canvas is None else canvas
        where = None if span is None else torch.arange(span.start, span.stop, device=key.device)
        return AttentionCall(
            query=self.query,
            key=key,
            value=value,
            mask=self.mask,
            query_positions=where,
            real_keys=self.real_keys,
            real_queries=self.real_queries,
            output_weight=self.output_weight,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Refresh:
    """What is held from one refresh to the next."""

    width: int  # of the canvas
    span: range  # computed at every step, and so not held
    prompt: int  # where the prompt ends: from there on nothing is evicted
    masked: Bool[Tensor, "batch canvas"]  # at the refresh
    event: int = 0  # how many refreshes were before


@dataclass(frozen=True, kw_only=True, eq=False)
class Held:
    """The entries of one layer."""

    prompt: KeptPrompt | None  # None: nothing is evicted, all of the prompt is in `before`
    before: KeysAndValues  # up to the span; behind the prompt, where that is held apart
    after: KeysAndValues  # behind the span

    @property
    def bytes(self) -> int:
        tensors = [*self.before, *self.after]
        if self.prompt is not None:
            tensors += [self.prompt.key, self.prompt.value, self.prompt.positions]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def entries(self, own: Own) -> KeysAndValues:
        """What is held, with what was just computed in its place; of the prompt, what each head has kept."""
        kept = self.prompt
        return self._around(own, None if kept is None else (kept.key, kept.value))

    def canvas(self, own: Own) -> KeysAndValues:
        """The same with every key at its position; 0 where a head has none."""
        return self._around(own, None if self.prompt is None else self.prompt.spread())

    def _around(self, own: Own, prompt: KeysAndValues | None) -> KeysAndValues:
        key, value = (
            torch.cat([*([] if prompt is None else [prompt[i]]), self.before[i], computed, self.after[i]], dim=2)
            for i, computed in enumerate((own.key, own.value))
        )
        return key, value


class LayerCache:
    """One layer, from one refresh to the next."""

    def __init__(self, layer: int, refresh: Refresh, eviction: Eviction | None) -> None:
        self.layer, self.refresh = layer, refresh
        self._eviction = None if eviction is None or layer in eviction.skip else eviction
        self.held: Held | None = None

    def attend(self, own: Own, owner: nn.Module) -> Float[Tensor, "batch head query dim"]:
        """Attention of what a forward computes: of the whole canvas, which is then held, or of the span."""
        held, span = self.held, self.refresh.span
        if held is None:
            output = attend(own.call(), owner)
            self.held = self._hold(own)
            return output
        if held.prompt is None:
            return attend(own.call(span, held.canvas(own)), owner)
        run = partial(_attend_to_entries, own, held)
        if not scopes_of(owner):
            return run()
        call = own.call(span, held.canvas(own))
        return attend(held.prompt.hide_evicted(call), owner, run=run)

    def _hold(self, own: Own) -> Held:
        refresh, kept = self.refresh, None
        span, evictable = refresh.span, min(refresh.prompt, refresh.span.start)
        if self._eviction is not None and self._eviction.keep < evictable:
            kept = KeptPrompt.of(
                own.call(),
                self._eviction,
                layer=self.layer,
                prompt=evictable,
                span=span,
                masked=refresh.masked,
                event=refresh.event,
            )
        return Held(
            prompt=kept,
            before=_copied(own, 0 if kept is None else evictable, span.start),
            after=_copied(own, span.stop, refresh.width),
        )


class CanvasCache:
    """All layers of one run. `refresh` before a forward makes it compute and hold; later ones compute the span."""

    def __init__(self, layers: int, *, eviction: Eviction | None = None) -> None:
        self._layers, self._eviction = layers, eviction
        self._refresh: Refresh | None = None
        self.layers: list[LayerCache] = []

    def refresh(self, *, span: range, prompt: int, masked: Bool[Tensor, "batch canvas"]) -> None:
        """The next forward computes the whole canvas; what lies outside `span` is held from then on."""
        event, width = 0 if self._refresh is None else self._refresh.event + 1, masked.shape[1]
        if not 0 <= span.start < span.stop <= width or span.step != 1:
            raise UsageError(f"span is {span}; expected consecutive positions, at least one, of a canvas of {width}")
        self._refresh = Refresh(width=width, span=span, prompt=prompt, masked=masked, event=event)
        self.layers = [LayerCache(layer, self._refresh, self._eviction) for layer in range(self._layers)]

    @property
    def bytes(self) -> int:
        """Of all that is held."""
        return sum(layer.held.bytes for layer in self.layers if layer.held is not None)

    def computed_of(self, ids: Int[Tensor, "batch canvas"]) -> range:
        """Which positions of the canvas `ids` the next forward computes."""
        refresh = self._refresh
        if refresh is None:
            raise UsageError("the cache holds nothing yet, nor does it know what to hold; call its `refresh` first")
        if ids.shape != refresh.masked.shape:
            raise UsageError(
                f"ids have shape {list(ids.shape)}, but the cache was refreshed for a canvas of "
                f"{list(refresh.masked.shape)}; pass the whole canvas, and refresh where it changes its shape"
            )
        held = all(layer.held is not None for layer in self.layers)
        return refresh.span if held else range(refresh.width)


def _attend_to_entries(own: Own, held: Held) -> Float[Tensor, "batch head query dim"]:
    """Attention on what each head has, without room for what it lacks."""
    assert held.prompt is not None
    key, value = held.entries(own)
    return run_attention(Scores(query=own.query, key=key, mask=held.prompt.mask), value).output


def _copied(own: Own, start: int, stop: int) -> KeysAndValues:
    """Copies of some entries: a view would keep the whole canvas in memory."""
    key, value = (
        entries[:, :, start:stop].clone(memory_format=torch.contiguous_format) for entries in (own.key, own.value)
    )
    return key, value
