"""The third door: code that calls SDPA or FlexAttention itself is overheard by a torch-function mode.

A mode hears `F.scaled_dot_product_attention` even where it was imported by name before sinklens was. It is entered and
left with the modules of the observed model, never globally. FlexAttention is heard when it runs eagerly; its block mask
is laid out as a boolean mask. A score_mod, or a compiled region, is refused by name.
"""

import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import flex_attention as flex
from torch.overrides import TorchFunctionMode

from sinklens.attention.call import AttentionCall
from sinklens.attention.seam import Kind, attend, scopes_of
from sinklens.errors import ObservationError

# Where it is set, FlexAttention runs as plain code, which can be heard. torch 2.6 has no such switch and always
# compiles, which is refused below.
FLEX_UNCOMPILED = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
_SDPA_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")

# The body of the function without its question whether a mode is listening: inside it, SDPA can be heard.
open_multi_head_attention = types.FunctionType(
    F.multi_head_attention_forward.__code__,
    {**F.__dict__, "has_torch_function": lambda _: False},
    "open_multi_head_attention",
    F.multi_head_attention_forward.__defaults__,
    F.multi_head_attention_forward.__closure__,
)
open_multi_head_attention.__kwdefaults__ = F.multi_head_attention_forward.__kwdefaults__
_multi_head_signature = inspect.signature(F.multi_head_attention_forward)

Complete = Callable[[AttentionCall], AttentionCall]  # a door adds what it knows: positions, padding, W_o


class Listener(TorchFunctionMode):
    """While entered, attention functions called by anyone go through the seam as calls of `owner`."""

    def __init__(self, owner: nn.Module, *, kind: Kind | None = None, complete: Complete | None = None) -> None:
        super().__init__()
        self.owner, self.kind, self.complete = owner, kind, complete
        self._flex_flags: list[bool] = []  # one for each time it is entered

    def __enter__(self) -> "Listener":
        self._flex_flags.append(getattr(flex, FLEX_UNCOMPILED, False))
        setattr(flex, FLEX_UNCOMPILED, True)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        setattr(flex, FLEX_UNCOMPILED, self._flex_flags.pop())

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            self._refuse_compiled("scaled_dot_product_attention")
            return self._sdpa(args, kwargs)
        if func is F.multi_head_attention_forward:
            return self._multi_head(func, args, kwargs)
        if func is flex.flex_attention_hop:  # type: ignore[attr-defined]
            self._refuse_compiled("flex_attention")
            return self._flex(func, args, kwargs)
        return func(*args, **kwargs)

    def _refuse_compiled(self, name: str) -> None:
        if torch.compiler.is_compiling():
            raise ObservationError(
                f"{name} is called inside torch.compile, where sinklens cannot look; run the model uncompiled, "
                "or under torch.compiler.set_stance('force_eager')"
            )

    def _sdpa(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        given = dict(zip(_SDPA_NAMES, args, strict=False)) | kwargs
        unknown = sorted(set(given) - set(_SDPA_NAMES))
        if unknown:
            raise ObservationError(
                f"scaled_dot_product_attention was called with {', '.join(unknown)}, which sinklens does not "
                f"know; it knows {', '.join(_SDPA_NAMES)}"
            )
        query, key, value, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
        if not 3 <= query.dim() <= 4:
            raise ObservationError(
                f"scaled_dot_product_attention was called with a query of shape {tuple(query.shape)}; sinklens "
                "follows [batch, head, query, dim] and [batch, query, dim]"
            )
        flat = query.dim() == 3  # no head axis: one head
        if flat:
            query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1 if flat else 0)
        batch = max(query.shape[0], key.shape[0])  # either may be one row for all
        call = AttentionCall(
            query=query.expand(batch, -1, -1, -1),
            key=key.expand(batch, -1, -1, -1),
            value=value.expand(batch, -1, -1, -1),
            mask=mask,
            is_causal=given.get("is_causal", False),
            scale=given.get("scale"),
            dropout=given.get("dropout_p", 0.0),
        )

        def run() -> Tensor:
            output = F.scaled_dot_product_attention(*args, **kwargs)
            return output.unsqueeze(1) if flat else output

        output = self._attend(call, run, exact=not flat and query.shape[0] == key.shape[0])
        return output.squeeze(1) if flat else output

    def _multi_head(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """nn.functional's attention with projections: it closes itself to modes, so it is run, then replayed."""
        given = _multi_head_signature.bind(*args, **kwargs).arguments
        changed = intervenes(self.owner)
        if changed and given.get("need_weights", True):
            raise ObservationError(
                "an intervention cannot return the weights of multi_head_attention_forward; call it with "
                "need_weights=False"
            )
        output = None if changed else func(**given)
        kind, self.kind = self.kind, "self" if given["query"] is given["key"] else "cross"
        with replaying(given.get("training", True), changed=changed), self:
            replayed = open_multi_head_attention(**{**given, "need_weights": False})
        self.kind = kind
        return replayed if changed else output

    def _flex(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The higher-order operator under flex_attention: (query, key, value, score_mod, block mask, scale, ...)."""
        query, key, value, score_mod, block_mask, scale = args[:6]
        if score_mod is not flex._identity:
            raise ObservationError(
                f"flex_attention was called with score_mod={getattr(score_mod, '__name__', score_mod)!r}, which "
                "sinklens cannot follow; pass a block_mask only, or express the bias as a float attn_mask of "
                "scaled_dot_product_attention"
            )
        if torch.is_grad_enabled() and query.requires_grad:
            raise ObservationError(
                "flex_attention is observed in eager form, which has no backward pass; use torch.no_grad()"
            )
        mask_mod = block_mask[-1]
        mask = None
        if mask_mod is not flex.noop_mask:
            rows, heads = block_mask[2].shape[:2]
            mask = flex.create_mask(mask_mod, rows, heads, query.shape[2], key.shape[2], device=str(query.device))
        original: list[Any] = []

        def run() -> Tensor:
            original.append(func(*args, **kwargs))
            output: Tensor = original[0][0]
            return output

        call = AttentionCall(query=query, key=key, value=value, mask=mask, scale=scale)
        output = self._attend(call, run, exact=False)
        if original:
            return original[0]
        lost = torch.full(query.shape[:3], torch.nan, device=query.device)
        return output, lost, lost  # an intervened call has no statistics to hand on

    def _attend(self, call: AttentionCall, run: Callable[[], Tensor], *, exact: bool) -> Tensor:
        """`exact`: `call` is the very call that was heard, so the seam may make it, for the log-sum-exp."""
        heard = call
        if self.complete is not None:
            call = self.complete(call)
        exact = exact and call.query.is_cuda and call.key is heard.key and call.mask is None
        if call.query.shape == heard.query.shape:
            return attend(call, self.owner, kind=self.kind or "self", run=None if exact else run)
        # Heads lay elsewhere in the call that was heard.
        output = attend(call, self.owner, kind=self.kind or "self", run=lambda: _laid(run(), call))
        return _laid(output, heard)


def _laid(output: Tensor, call: AttentionCall) -> Tensor:
    """The same numbers with the heads and queries of `call`."""
    return output.reshape(*call.query.shape[:3], output.shape[-1])


def intervenes(owner: nn.Module) -> bool:
    """True when a scope that changes calls is open for this module."""
    return any(scope.intervention is not None for scope in scopes_of(owner))


@contextmanager
def replaying(training: bool, *, changed: bool) -> Iterator[None]:
    """A second run for observers: modes on, no gradient, and dropout draws that do not shift the model's own.

    Under an intervention (`changed`) it is the run itself.
    """
    with (
        torch._C._EnableTorchFunction(),  # inside an encoder layer they are off
        torch.set_grad_enabled(changed and torch.is_grad_enabled()),
        torch.random.fork_rng(enabled=training and not changed),
    ):
        yield
