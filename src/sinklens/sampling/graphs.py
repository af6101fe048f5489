"""The forward of a run as one CUDA graph: captured when its shape comes back, replayed from then on.

At a few hundred tokens a step is bound by the host, which launches some twenty kernels a layer, and more under an
observer. A graph launches them all at once; what observers measure is part of it. Numbers and tokens are the same.

Only forwards of one shape can be captured: a canvas that is denoised, not a text that grows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinklens.attention.capture import capture
from sinklens.attention.clock import current_step
from sinklens.attention.intervener import Repeated, repeats
from sinklens.attention.observe import Replayed
from sinklens.attention.outputs import Projections
from sinklens.attention.seam import Scope, scopes_of
from sinklens.errors import UsageError
from sinklens.models.language_model import LanguageModel
from sinklens.types import ModelSpec

WARM = 2  # forwards of a shape before it is captured: kernels are compiled there, and an intervention makes its choices
WARM_OBSERVED = 1  # where there is none

# Forwards that have been captured: the same forward of a later run need not be launched before. Of each, what its
# observers have to know of the model.
_known: "WeakKeyDictionary[nn.Module, dict[tuple[object, ...], list[Projections]]]" = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Graph:
    """One captured forward, and the places it reads from and writes to."""

    replay: Callable[[], None]
    ids: Int[Tensor, "batch position"]
    logits: Float[Tensor, "batch position vocab"]
    observers: tuple[Replayed | Repeated, ...]

    def run(self, ids: Int[Tensor, "batch position"]) -> Float[Tensor, "batch position vocab"]:
        self.ids.copy_(ids)
        for observer in self.observers:
            observer.before()
        self.replay()
        for observer in self.observers:
            observer.after()
        return self.logits


class CapturedModel:
    """A model for one run. What it returns is overwritten by its next forward."""

    def __init__(self, model: LanguageModel) -> None:
        self.model, self.tokenizer = model, model.tokenizer
        self.spec: ModelSpec = model.spec
        self._module = _module_of(model)
        self._graphs: dict[tuple[object, ...], _Graph] = {}
        self._count: dict[tuple[object, ...], int] = {}
        self._masks: dict[int, tuple[Tensor, Tensor | None]] = {}  # each is held, so that its id stays its own

    @property
    def device(self) -> torch.device:
        return self.model.device

    def __call__(self, ids: Any, attention_mask: Any = None) -> Float[Tensor, "batch position vocab"]:
        scopes = scopes_of(self._module)
        if any(scope.intervention is not None and not repeats(scope.intervention) for scope in scopes):
            raise UsageError(
                "graph=True under an intervention that decides anew at every step; leave graph out (MaskSinks, "
                "RandomKeys and NextRanked with `top` and their own choices otherwise can be captured)"
            )
        attention_mask = self._reduced(attention_mask)
        key = (ids.shape, None if attention_mask is None else id(attention_mask), scopes)
        graph = self._graphs.get(key)
        if graph is None:
            self._count[key] = self._count.get(key, 0) + 1
            if self._count[key] <= self._launched(ids, attention_mask, scopes):
                return self.model(ids, attention_mask=attention_mask)
            # Those of observers that have ended go: each holds memory for a whole forward.
            self._graphs = {other: kept for other, kept in self._graphs.items() if other[-1] == scopes}
            graph = self._graphs[key] = self._capture(ids, attention_mask, scopes)
        return graph.run(ids)

    def _launched(self, ids: Tensor, attention_mask: Tensor | None, scopes: tuple[Any, ...]) -> int:
        """How many forwards are launched before one is captured."""
        if any(scope.intervention is not None for scope in scopes):
            return WARM
        known = _known.get(self._module, {}).get(self._kernels(ids, scopes))
        if attention_mask is not None or known is None:
            return WARM_OBSERVED
        ready = [scope.prepare(needs) for scope, needs in zip(scopes, known, strict=True)]
        return 0 if all(ready) else WARM_OBSERVED

    def _kernels(self, ids: Tensor, scopes: tuple[Any, ...]) -> tuple[object, ...]:
        """Forwards that have the same launch the same kernels, with libraries that have been used before."""
        first, step, kind = next(self._module.parameters(), None), current_step(), ids.device.type
        model = None if first is None else (first.dtype, first.device)
        cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        rows = None if step is None else step.rows  # of guidance observers see half
        return (ids.shape, rows, model, cast, get_ident(), *(scope.kernels for scope in scopes))

    def _reduced(self, attention_mask: Tensor | None) -> Tensor | None:
        """None where it hides nothing: asked once for each mask, because the card has to answer."""
        if attention_mask is None:
            return None
        if id(attention_mask) not in self._masks:
            real = None if bool(attention_mask.bool().all()) else attention_mask
            self._masks[id(attention_mask)] = (attention_mask, real)
        return self._masks[id(attention_mask)][1]

    def _capture(self, ids: Tensor, attention_mask: Tensor | None, scopes: tuple[Any, ...]) -> _Graph:
        if current_step() is None:
            raise UsageError(
                "graph=True for a sampler that does not announce its steps; wrap each forward in `with "
                "at_step(StepNumber(index, canvas=ids, masked=masked))`, see docs/bring-your-own.md"
            )
        self._refuse_partial(scopes)
        place, graph = ids.clone(), torch.cuda.CUDAGraph()
        with capture(graph):
            logits = self.model(place, attention_mask=attention_mask)
        observers = tuple(scope.captured() for scope in scopes)
        if attention_mask is not None or any(observer.need_a_run for observer in observers):
            graph.replay()  # a trial: query groups are told apart with what the graph makes of the mask
        if attention_mask is None and all(scope.intervention is None for scope in scopes):
            needs = [list(scope.projections) for scope in scopes]
            _known.setdefault(self._module, {})[self._kernels(ids, scopes)] = needs
        return _Graph(replay=graph.replay, ids=place, logits=logits, observers=observers)

    def _refuse_partial(self, scopes: tuple[Scope, ...]) -> None:
        """Whoever looks at a part of the model alone would see one forward, and no other."""
        for name, module in self._module.named_modules():
            if set(scopes_of(module)) - set(scopes):
                raise UsageError(
                    f"graph=True while {name} is observed by itself; observe the whole model (layers=... keeps few)"
                )


def captured(model: LanguageModel) -> CapturedModel:
    """`model` for one run of a sampler whose forwards are all alike."""
    if model.device.type != "cuda":
        raise UsageError(f"graph=True on {model.device}; CUDA graphs are for NVIDIA GPUs: leave graph out")
    if model.spec.causal:
        raise UsageError(
            f"graph=True for {model.spec.family!r}, an autoregressive model, whose text grows at every step; graphs "
            "are for forwards of one shape, as diffusion models have them"
        )
    return CapturedModel(model)


def _module_of(model: LanguageModel) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise UsageError(f"graph=True for a {type(model).__name__}; expected a torch.nn.Module, as sl.load returns it")
    return model
