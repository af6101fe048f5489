"""A trace whose tokens and name try to be more than text."""

import numpy as np

from sinklens.sinks.arrays import Canvases, MemoryTrace, from_arrays

NAME = "<b onclick=alert(3)>&</b></title>"
TOKENS = (
    "<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "<!--<script>", "</style>", "&quot;", '"a,b"',
    "\u202eright to left", "\u2028", "{policy}", "javascript:alert(4)", "=1+1", "\x00", "\ud800", "plain",
)  # fmt: skip


def hostile_trace() -> MemoryTrace:
    """Every token is a sink at the step of its number."""
    count = len(TOKENS)
    received = np.full((count, 1, 1, count), 0.5, np.float32)  # [step, layer, head, key]
    received[np.arange(count), 0, 0, np.arange(count)] = count - 0.5 * (count - 1)
    plain = from_arrays(received, viewers=8.0)
    old = plain.canvases(0)
    canvases = Canvases(
        sample=0, prompt_length=2, ids=old.ids, masked=old.masked, committed=old.committed, confidence=old.confidence,
        blocks=old.blocks, tokens=dict(enumerate(TOKENS)), classes=dict.fromkeys(range(count), "<i>class</i>"),
    )  # fmt: skip
    return MemoryTrace(contents=plain.contents, texts={0: canvases}, name=NAME)
