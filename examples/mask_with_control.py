"""What do sinks do? Hide them while problems are answered, beside as many random keys, and compare problem by problem.

python examples/mask_with_control.py
"""

import sinklens as sl
from sinklens.evaluation.answering import Answering, answer_problems, problems
from sinklens.evaluation.conditions import parse_condition
from sinklens.evaluation.paired import paired_difference

model = sl.load("tiny-llama")
answering = Answering(task="word_problems", length=48, batch=16)
items = problems(answering, 16)

right = {}
for condition in ("none", "sinks:top=1", "random:top=1", "first:top=1"):
    rows = answer_problems(model, items, parse_condition(condition), answering)
    right[condition] = [row["right"] for row in rows]
    dose = rows[0]["dose"]
    hidden = "" if dose is None else f", {dose:.2f} of the largest weight hidden"
    print(f"{condition:13} {sum(right[condition]):2} of {len(items)} right{hidden}")

for control in ("random:top=1", "first:top=1"):
    found = paired_difference(right["sinks:top=1"], right[control])
    low, high = 100 * found.interval.low, 100 * found.interval.high
    print(f"sinks - {control}: {100 * found.value:+.0f} points [{low:+.0f}, {high:+.0f}], p {found.p:.2g}")
