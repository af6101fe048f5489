"""The third door: code that calls SDPA or FlexAttention itself is overheard by a torch-function mode.

A mode hears `F.scaled_dot_product_attention` even where it was imported by name before sinklens was. It is entered and
left with the modules of the observed model, never globally. FlexAttention is heard when it runs eagerly; its block mask
is laid out as a boolean mask. A score_mod, or a compiled region, is refused by name.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import flex_attention as flex
from torch.overrides import TorchFunctionMode

from sinklens.attention.call import AttentionCall
from sinklens.attention.seam import Kind, attend, scopes_of
from sinklens.errors import ObservationError

_SDPA_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")

Complete = Callable[[AttentionCall], AttentionCall]  # a door adds what it knows: positions, padding, W_o


class Listener(TorchFunctionMode):
    """While entered, attention functions called by anyone go through the seam as calls of `owner`."""

    def __init__(self, owner: nn.Module, *, kind: Kind | None = None, complete: Complete | None = None) -> None:
        super().__init__()
        self.owner, self.kind, self.complete = owner, kind, complete
        self._flex_flags: list[bool] = []  # one for each time it is entered

    def __enter__(self) -> "Listener":
        self._flex_flags.append(flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG)
        flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # it then runs as plain code, which can be heard
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = self._flex_flags.pop()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            self._refuse_compiled("scaled_dot_product_attention")
            return self._sdpa(args, kwargs)
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
            mask = mask.unsqueeze(1) if mask is not None and mask.dim() == 3 else mask
        batch = query.shape[0]
        call = AttentionCall(
            query=query,
            key=key.expand(batch, -1, -1, -1),
            value=value.expand(batch, -1, -1, -1),
            mask=mask,
            is_causal=given.get("is_causal", False),
            scale=given.get("scale"),
            dropout=given.get("dropout_p", 0.0),
        )
        # Grouped heads under a mask, or no head axis: ours would be another call, so the model's own is run.
        grouped = key.shape[1] < query.shape[1] and mask is not None
        run = None
        if flat or grouped:

            def run() -> Tensor:
                output = F.scaled_dot_product_attention(*args, **kwargs)
                return output.unsqueeze(1) if flat else output

        output = self._attend(call, run)
        return output.squeeze(1) if flat else output

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
        output = self._attend(call, run)
        if original:
            return original[0]
        lost = torch.full(query.shape[:3], torch.nan, device=query.device)
        return output, lost, lost  # an intervened call has no statistics to hand on

    def _attend(self, call: AttentionCall, run: Callable[[], Tensor] | None) -> Tensor:
        if self.complete is not None:
            call = self.complete(call)
        kind: Kind = self.kind or "self"
        return attend(call, self.owner, kind=kind, run=run)


def intervenes(owner: nn.Module) -> bool:
    """True when a scope that changes calls is open for this module."""
    return any(scope.intervention is not None for scope in scopes_of(owner))
