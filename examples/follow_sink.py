"""One sink of a diffusion model as an object: where it is at every denoising step, and what it sits on.

python examples/follow_sink.py
"""

import tempfile

import sinklens as sl

model = sl.load("tiny-llada")
prompt = (
    "Question: Mia has 12 apples. She finds 5 more apples. Then she gives 4 apples to Tom. "
    "How many apples does Mia have now?\nAnswer:"
)
sampler = sl.LLaDASampler(steps=48, length=48, block=48)
trace = sl.trace(model, prompt, sampler, to=tempfile.mkdtemp() + "/trace")

tracks = sl.track_sinks(trace).to_pylist()
kinds = sorted({track["kind"] for track in tracks})
print(f"{len(tracks)} sinks:", ", ".join(f"{sum(t['kind'] == kind for t in tracks)} {kind}" for kind in kinds))

most = max(tracks, key=lambda track: (len(set(track["positions"])), len(track["positions"])))
print(f"the one that visits most tokens: layer {most['layer']}, head {most['head']}, {most['kind']}")
canvases = trace.canvases(0)
for number, place in list(enumerate(most["positions"]))[:: max(1, len(most["positions"]) // 8)]:
    step = most["birth"] + number
    token = model.tokenizer.decode([int(canvases.ids[step, place])])
    print(f"  step {step:2}: position {place:2}, {token!r}, {most['scores'][number]:.1f} fair shares above the others")
