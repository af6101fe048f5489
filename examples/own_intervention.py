"""An intervention of your own: any function from an attention call to another, while a context is open.

Here: in the upper half of the layers the first token is not there.

    python examples/own_intervention.py
"""

import sinklens as sl


def without_first(call: sl.AttentionCall) -> sl.AttentionCall:
    if call.site.layer < model.spec.layers // 2:
        return call
    keep = call.where_keys() != 0  # by position on the canvas, whatever a cache holds
    return call.keep_keys(keep)


model = sl.load("tiny-llada")
prompt = (
    "Question: Mia has 12 apples. She finds 5 more apples. Then she gives 4 apples to Tom. "
    "How many apples does Mia have now?\nAnswer:"
)
sampler = sl.LLaDASampler(steps=48, length=48, block=48)

print("untouched:          ", repr(sl.generate(model, prompt, sampler).text[0]))
with sl.intervene(model, without_first), sl.observe(model) as seen:
    print("without first token:", repr(sl.generate(model, prompt, sampler).text[0]))
received = seen.steps[-1].received[:, 0, :, 0].sum(1)  # by layer, of all heads
print("it receives, by layer:", " ".join(f"{one:.1f}" for one in received.tolist()))
print("and again untouched:", repr(sl.generate(model, prompt, sampler).text[0]))
