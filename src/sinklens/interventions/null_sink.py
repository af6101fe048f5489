"""A sink for free: one more key, with value 0 and a fixed logit, that every query sees.

    weight of key j = exp(s_j) / (exp(logit) + sum over visible j of exp(s_j))

If sinks are where heads put attention they have no use for, this takes their place. Logit 0 is the off-by-one softmax;
the attention that goes there is the `null_mass` of an observation. A model that has such a logit of its own keeps it.
"""

from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import torch

from sinklens.attention.call import AttentionCall
from sinklens.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class NullSink:
    """An intervention without a memory; cross-attention is left alone."""

    logit: Any = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.logit, bool) or not isinstance(self.logit, (int, float)) or not isfinite(self.logit):
            raise UsageError(f"logit is {self.logit!r}; expected a finite number (0: the off-by-one softmax)")

    def __call__(self, call: AttentionCall) -> AttentionCall:
        if call.site is not None and call.site.kind == "cross":
            return call
        dtype = torch.promote_types(call.query.dtype, torch.float32)
        null = call.query.new_full((call.query.shape[1],), float(self.logit), dtype=dtype)
        if call.sink_logits is not None:
            null = torch.logaddexp(null, call.sink_logits.to(dtype))
        return replace(call, sink_logits=null)
