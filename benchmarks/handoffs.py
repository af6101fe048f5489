"""How often the test of hand-offs is wrong, and how often it is right: `python benchmarks/handoffs.py`.

Wrong: heads whose stays are placed at random and independently, in which any accepted hand-off is false; 5 % are
expected. Right: heads with one clean jump, two stays of equal mass that are seen to begin and to end.
"""

import numpy as np

from sinklens.sinks.handoffs import link
from sinklens.sinks.stays import Stays

HEADS, STEPS, KEYS, MASS = 2000, 128, 192, 8.0


def main() -> None:
    rng = np.random.default_rng(0)
    for count in (4, 10, 20):
        stays = joined([independent(rng, head, count) for head in range(HEADS)])
        print(f"{count:3d} independent stays of {STEPS} steps: {accepted(stays, STEPS):.3f} of {HEADS} heads accepted")
    for steps in (12, 32, 48, 64, 96, 128):
        stays = joined([one_jump(rng, head, steps) for head in range(400)])
        print(f"one jump in {steps:3d} steps: {accepted(stays, steps, heads=400):.2f} of 400 heads accepted")


def accepted(stays: Stays, steps: int, *, heads: int = HEADS) -> float:
    linked, _ = link(stays, steps=steps, seeds=[(0, head) for head in range(heads)])
    return len(np.unique(stays.head[linked.successor >= 0])) / heads


def independent(rng: np.random.Generator, head: int, count: int) -> Stays:
    first = rng.integers(0, STEPS, count)
    last = np.minimum(first + rng.geometric(0.15, count) - 1, STEPS - 1)
    mass = MASS * rng.uniform(0.6, 1.6, (2, count))
    return placed(head, rng.permutation(KEYS)[:count], first=first, last=last, mass=mass, steps=STEPS)


def one_jump(rng: np.random.Generator, head: int, steps: int) -> Stays:
    begin, jump, end = np.sort(1 + rng.choice(steps - 2, 3, replace=False))
    position = rng.permutation(KEYS)[:2]
    first, last = np.array([begin, jump]), np.array([jump - 1, max(end - 1, jump)])
    return placed(head, position, first=first, last=last, mass=np.full((2, 2), MASS), steps=steps)


def placed(head: int, position, *, first, last, mass, steps: int) -> Stays:
    order = np.lexsort((position, first))
    gain, loss = np.where(first > 0, mass[0], 0.0), np.where(last < steps - 1, mass[1], 0.0)
    columns = {"position": position, "first": first, "last": last, "gain": gain, "loss": loss}
    return Stays(head=np.full(len(order), head), **{name: values[order] for name, values in columns.items()})


def joined(parts: list[Stays]) -> Stays:
    return Stays(**{name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])})


if __name__ == "__main__":
    main()
