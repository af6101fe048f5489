"""Where a model's attention goes, in three lines: load, observe, generate.

python examples/see_sinks.py
"""

import sinklens as sl

model = sl.load("tiny-dream")  # or a hub id, or a folder; sl.wrap(model) for a transformers model you have
with sl.observe(model) as seen:
    made = sl.generate(model, "Question: What is 12 + 5?\nAnswer:", sl.DreamSampler(steps=16, length=16))

step = seen.steps[-1]
sinks = sl.detect_sinks(step.received, step.expected)  # [layer, batch, head, key]
words = [repr(model.tokenizer.decode([token])) for token in made.ids[0].tolist()]
print("layer  sinks  strongest: fair shares (1 is uniform attention), position, token")
for layer, share in enumerate(step.fair_share[:, 0]):  # [head, key]
    place = int(share.amax(0).argmax())
    print(f"{layer:5}  {int(sinks[layer].sum()):5}  {float(share.max()):.1f} at {place}, {words[place]}")
