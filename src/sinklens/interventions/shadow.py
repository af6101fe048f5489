"""A second pass over the input of a step, without the intervention: what the model would do if nothing were masked.

It runs on a copy of the model that shares every weight, so that no observer or intervention of the model hears of it.
"""

from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor, nn

from sinklens.attention.call import AttentionCall
from sinklens.attention.clock import current_step
from sinklens.attention.observe import intervene
from sinklens.errors import ObservationError, UsageError
from sinklens.types import ModelSpec

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


class Shadow:
    """The copy, and the self-attention calls of its last forward, by layer."""

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(getattr(model, "spec", None), ModelSpec):
            raise UsageError(
                f"a shadow pass (measure='shadow', source='same_input', or keys='cached' for a diffusion model) runs "
                f"the model on ids, but this {type(model).__name__} has no spec; take what sinklens.load or "
                "sinklens.wrap returns"
            )
        if any(hasattr(module, "_hf_hook") for module in model.modules()):
            raise UsageError(
                "a shadow pass needs the model on one device, but accelerate has spread it; load it with device='cuda'"
            )
        self.calls: dict[int, AttentionCall] = {}
        self._model: Any = _copy(model)

    def run(self, real: Bool[Tensor, "batch key"] | None) -> None:
        """A clean forward of the canvas of this step. `real`: its padding, as known at the first step."""
        step = current_step()
        if step is None or step.canvas is None:
            raise UsageError(
                "a shadow pass needs the ids of the step, which a sampler announces; outside one, run the forward in "
                "`with at_step(StepNumber(0, canvas=ids))` (sinklens.attention.clock)"
            )
        canvas, mask = step.canvas, None
        if real is not None and not bool(real.all()):
            mask = F.pad(real, (0, canvas.shape[1] - real.shape[1]), value=True).long()
        self.calls = {}
        try:
            # The seam computes with torch functions switched off; models that call SDPA themselves are heard by one.
            with torch.no_grad(), torch._C._EnableTorchFunction(), intervene(self._model, self._keep):
                self._model(canvas, attention_mask=mask)
        except ObservationError as error:
            raise UsageError(f"the shadow pass of this model cannot be seen: {error}") from error

    def _keep(self, call: AttentionCall) -> AttentionCall:
        assert call.site is not None
        if call.site.kind == "self":
            self.calls[call.site.layer] = call
        return call


def _copy(model: nn.Module) -> nn.Module:
    """Modules of its own, the tensors of the model; scopes that are open around the model stay with the model."""
    tensors = [*model.parameters(), *model.buffers()]
    shared = {id(thing): thing for thing in (*tensors, getattr(model, "tokenizer", None)) if thing is not None}
    copy = deepcopy(model, shared)
    for module in copy.modules():
        if getattr(module.__dict__.get("forward"), "wrapped_by_sinklens", False):
            del module.__dict__["forward"]
        for name in _HOOKS:
            hooks = getattr(module, name)
            ours = [number for number, hook in hooks.items() if getattr(hook, "__module__", "").startswith("sinklens.")]
            for number in ours:
                del hooks[number]
    return copy
