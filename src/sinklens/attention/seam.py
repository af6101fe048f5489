"""`attend`: the one place where interventions change a call, attention runs, and observers see it.

Three doors lead here: native models call it, transformers' attention interface is routed to it (huggingface.py),
and code that calls SDPA itself is overheard (listen.py, torch_modules.py). Whoever calls names the module that owns the
call; scopes (`observe`, `intervene`) register for the modules of one model, so nothing outside that model is touched.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinklens.attention.call import AttentionCall
from sinklens.attention.clock import current_step
from sinklens.errors import UsageError
from sinklens.kernels.forward import Forward, run_attention

Kind = Literal["self", "cross"]
Intervention = Callable[[AttentionCall], AttentionCall]
Output = Float[Tensor, "batch head query value_dim"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """What an observer is shown of one call: before and after the interventions, and how it was computed."""

    incoming: AttentionCall
    effective: AttentionCall
    forward: Forward  # output, log-sum-exp where the kernel gave one, and the kernel's name


@runtime_checkable
class Scope(Protocol):
    """Something that watches or changes the attention of one model while its context is open."""

    @property
    def intervention(self) -> Intervention | None: ...

    @property
    def wants_lse(self) -> bool: ...

    def describe(self, call: AttentionCall, owner: nn.Module, kind: Kind) -> AttentionCall:
        """The call with its site, in this scope's own count, and with what the scope knows of padding."""
        ...

    def see(self, seen: Seen) -> None: ...


_scopes: "WeakKeyDictionary[nn.Module, tuple[Scope, ...]]" = WeakKeyDictionary()


def scopes_of(owner: nn.Module) -> tuple[Scope, ...]:
    """The scopes that are open for this module, outermost first."""
    return _scopes.get(owner, ())


@contextmanager
def registered(model: nn.Module, scope: Scope) -> Iterator[None]:
    """`scope` hears of every call that a module of `model` owns, until the context closes."""
    modules = list(model.modules())
    for module in modules:
        _scopes[module] = (*_scopes.get(module, ()), scope)
    try:
        yield
    finally:
        for module in modules:
            left = tuple(other for other in _scopes.get(module, ()) if other is not scope)
            if left:
                _scopes[module] = left
            else:
                _scopes.pop(module, None)


def attend(
    call: AttentionCall,
    owner: nn.Module,
    *,
    kind: Kind = "self",
    run: Callable[[], Tensor] | None = None,
) -> Output:
    """Attention output of `call`, through every scope that watches or changes `owner`.

    `run` computes the unchanged call the way the model itself would; it is used as long as no intervention returned
    another call, so that an observed model computes bit for bit what it computes unobserved. Under guidance (two
    halves in one batch) scopes see the conditional half only.
    """
    scopes = scopes_of(owner)
    if not scopes:
        return run() if run is not None else _compute(call, wants_lse=False).output
    # Modes of observers further out are off in here: what attention does inside is not theirs to hear.
    with torch._C.DisableTorchFunction():
        shown = _first_rows(call, _rows_of_the_run(call))
        described = [scope.describe(shown, owner, kind) for scope in scopes]
        effective = shown
        for scope, known in zip(scopes, described, strict=True):
            if scope.intervention is not None:
                effective = scope.intervention(_located(effective, known))
                if not isinstance(effective, AttentionCall):
                    raise UsageError(f"an intervention returned {effective!r}; expected an AttentionCall")
        if effective is not shown:
            _check_keys(shown, effective)
        wants_lse = any(scope.wants_lse for scope in scopes)
        if _same_arithmetic(shown, effective):
            output, forward = _run_unchanged(call, shown, run, wants_lse=wants_lse)
        else:
            forward = _compute(effective, wants_lse=wants_lse)
            output = _with_other_rows(forward.output, call)
        if not recomputing():  # else it has been seen, in the forward
            for scope, known in zip(scopes, described, strict=True):
                seen = known if effective is shown else _located(effective, known)
                scope.see(Seen(incoming=known, effective=seen, forward=forward))
    return output


def recomputing() -> bool:
    """True inside a backward pass: gradient checkpointing runs parts of the forward once more."""
    return torch._C._current_graph_task_id() != -1


def _check_keys(call: AttentionCall, changed: AttentionCall) -> None:
    """An intervention that drops keys must cut what goes with them; causality is by place, so it breaks silently."""
    keys = changed.key.shape[2]
    if keys == call.key.shape[2]:
        return
    mask_fits = changed.mask is None or changed.mask.shape[-1] in (1, keys)
    real_fits = changed.real_keys is None or changed.real_keys.shape[1] == keys
    placed = changed.key_positions is not None and changed.key_positions.numel() == keys
    if changed.is_causal or not (mask_fits and real_fits and placed):
        raise UsageError(
            f"an intervention changed the number of keys from {call.key.shape[2]} to {keys} without what goes with "
            "them (mask, causality, positions, padding); use call.keep_keys(index), which keeps all of it"
        )


def _rows_of_the_run(call: AttentionCall) -> int:
    step = current_step()
    return call.query.shape[0] if step is None or step.rows is None else step.rows


def _run_unchanged(
    call: AttentionCall, shown: AttentionCall, run: Callable[[], Tensor] | None, *, wants_lse: bool
) -> tuple[Tensor, Forward]:
    """The whole batch in one go, as without observers; what they are shown is cut to their rows."""
    whole = Forward(output=run(), lse=None, kernel="model") if run is not None else _compute(call, wants_lse=wants_lse)
    if shown is call:
        return whole.output, whole
    rows = shown.query.shape[0]
    lse = None if whole.lse is None else whole.lse[:rows]
    return whole.output, Forward(output=whole.output[:rows], lse=lse, kernel=whole.kernel)


def _with_other_rows(output: Tensor, call: AttentionCall) -> Tensor:
    """Append the rows of the batch that no scope sees, computed as they are."""
    rows = output.shape[0]
    if rows == call.query.shape[0]:
        return output
    return torch.cat([output, _compute(_rows(call, slice(rows, None)), wants_lse=False).output])


def _first_rows(call: AttentionCall, rows: int) -> AttentionCall:
    return call if rows == call.query.shape[0] else _rows(call, slice(0, rows))


def _rows(call: AttentionCall, rows: slice) -> AttentionCall:
    def cut(tensor: Tensor | None) -> Tensor | None:
        return tensor if tensor is None or tensor.shape[0] == 1 else tensor[rows]

    mask = call.mask
    return replace(
        call,
        query=call.query[rows],
        key=call.key[rows],
        value=call.value[rows],
        mask=cut(mask) if mask is not None and mask.dim() == 4 else mask,
        real_keys=cut(call.real_keys),
        real_queries=cut(call.real_queries),
    )


def _located(call: AttentionCall, known: AttentionCall) -> AttentionCall:
    """`call` with the site and the padding that one scope knows."""
    same_keys = call.key.shape[2] == known.key.shape[2]
    return replace(
        call,
        site=known.site,
        real_keys=known.real_keys if call.real_keys is None and same_keys else call.real_keys,
        real_queries=known.real_queries if call.real_queries is None else call.real_queries,
    )


def same_scores(call: AttentionCall, other: AttentionCall) -> bool:
    """True when the two differ in nothing that their attention weights are made of."""
    names = ("query", "key", "mask", "is_causal", "scale", "softcap", "sink_logits")
    return all(getattr(call, name) is getattr(other, name) for name in names)


def _same_arithmetic(call: AttentionCall, other: AttentionCall) -> bool:
    """True when the two differ in nothing that attention computes with."""
    return same_scores(call, other) and call.value is other.value and call.dropout is other.dropout


def _compute(call: AttentionCall, *, wants_lse: bool) -> Forward:
    return run_attention(call.scores, call.value, dropout=call.dropout, wants_lse=wants_lse)
