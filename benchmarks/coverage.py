"""How often the bootstrap interval over samples holds the truth: `python benchmarks/coverage.py`.

The mean of n normal values, 95 % percentile interval, 2000 runs for each n. Few samples make it too narrow.
"""

import numpy as np

from sinklens.sinks.resample import bootstrap


def main() -> None:
    rng = np.random.default_rng(0)
    for n in (3, 5, 10, 30, 100):
        held = 0
        for run in range(2000):
            interval = bootstrap(rng.normal(size=n), seed=run)
            held += interval.low <= 0 <= interval.high
        print(f"n = {n:3d}: {held / 2000:.3f} of intervals hold the mean")


if __name__ == "__main__":
    main()
