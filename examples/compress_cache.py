"""A cache that keeps half of its keys: which half matters. Pass keys hidden in filler, three orders of eviction.

python examples/compress_cache.py
"""

import sinklens as sl
from sinklens.evaluation.answering import Answering, graded, problems

model = sl.load("tiny-llama")
items = problems(Answering(task="passkey"), 8)
sampler = sl.AutoregressiveSampler(length=12)
prompts = [item.prompt for item in items]
longest = max(len(model.tokenizer.encode(prompt)) for prompt in prompts)
keep = longest // 2

whole = sl.generate(model, prompts, sampler)
print(f"whole cache: {sum(graded('passkey', items, whole.text))} of {len(items)} pass keys found, {longest} tokens")
for order in ("low", "random", "high"):  # low: keys of low norm are kept
    with sl.compress(model, sl.Compression(order=order, keep=keep, skip=(0, 1))) as cut:
        found = sl.generate(model, prompts, sampler).text
    held = f"{keep} entries a head behind the prompt, {cut.bytes / 1e6:.2f} MB at the end"
    print(f"{order:>6}: {sum(graded('passkey', items, found))} of {len(items)}; {held}")
