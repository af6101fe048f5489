"""A metric of your own, measured at every attention call while a model generates: nothing of the model changes.

Here: how long the key of a head's strongest sink is, beside the median key. In causal models sinks have short keys
(arXiv 2406.11430). In a diffusion model?

    python examples/own_metric.py
"""

from collections import defaultdict

import sinklens as sl

ratios = defaultdict(list)  # by layer


def measure(call: sl.AttentionCall) -> sl.AttentionCall:
    settings = {"mask": call.mask, "is_causal": call.is_causal, "scale": call.scale}
    share = sl.attention_received(call.query, call.key, **settings).fair_share  # [batch, head, key]
    norm = call.key.norm(dim=-1)  # [batch, kv_head, key]
    norm = norm.repeat_interleave(share.shape[1] // norm.shape[1], dim=1)
    sink = norm.gather(2, share.argmax(-1, keepdim=True))
    ratios[call.site.layer] += (sink / norm.median(dim=-1, keepdim=True).values).flatten().tolist()
    return call  # the same call: only looked at


model = sl.load("tiny-llada")
prompt = (
    "Question: Mia has 12 apples. She finds 5 more apples. Then she gives 4 apples to Tom. "
    "How many apples does Mia have now?\nAnswer:"
)
with sl.intervene(model, measure):
    sl.generate(model, prompt, sl.LLaDASampler(steps=8, length=32, block=32))

for layer, found in ratios.items():
    shorter = sum(ratio < 1 for ratio in found) / len(found)
    print(f"layer {layer}: key of the sink / median key {sum(found) / len(found):.2f}, shorter in {shorter:.0%}")
