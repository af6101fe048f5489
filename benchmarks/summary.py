"""How long `sinklens sinks` takes on a trace of an 8B model's shape: 32 layers x 32 heads, 128 steps, 192 tokens.

    python benchmarks/summary.py [--detail full|sinks] [--norms]

The attention is synthetic (log-normal background; one to three sinks a head that stay, drift or flicker; masks that
are filled in block by block), because time depends on its size and on the number of sinks, not on what it means. The
command runs in a process of its own, as a user runs it: start of Python, opening, reading and summing up are all
counted. Beside it stands the time that reading the same column alone takes, so that a slow disk shows.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from sinklens.sinks.tokens import CLASSES
from sinklens.traces.read import open_trace
from sinklens.traces.rows import AttentionRows, GroupRows, SampleEnd, StepRows
from sinklens.traces.write import TraceWriter

LAYERS, HEADS, STEPS, KEYS, PROMPT, BLOCK = 32, 32, 128, 192, 64, 32
MASK = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--detail", choices=("full", "sinks"), default="full")
    parser.add_argument("--norms", action="store_true", help="record norms too, and summarise them")
    parser.add_argument("--runs", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "trace"
        write(folder, detail=chosen.detail, norms=chosen.norms)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        print(f"{chosen.detail}: {size / 1e6:.0f} MB, {LAYERS} x {HEADS} heads, {STEPS} steps, {KEYS} tokens")
        reads = [timed(lambda: read(folder)) for _ in range(chosen.runs)]
        command = [sys.executable, "-m", "sinklens.cli", "sinks", str(folder), "--json"]
        runs, sinks = [], 0
        for _ in range(chosen.runs):
            began = time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            runs.append(time.perf_counter() - began)
            sinks = json.loads(done.stdout)["traces"][0]["overview"]["sinks"]
        print(f"reading `received` of all layers: {median(reads):.2f} s")
        print(f"sinklens sinks: {median(runs):.2f} s ({min(runs):.2f} to {max(runs):.2f}), {sinks} sinks")


def timed(work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def median(values: list[float]) -> float:
    return float(np.median(values))


def read(folder: Path) -> None:
    trace = open_trace(folder)
    for layer in trace.layers:
        trace.layer(0, layer)


def write(folder: Path, *, detail: str, norms: bool) -> None:
    model = {
        "name": "synthetic-8b",
        "family": "llada",
        "causal": False,
        "layers": LAYERS,
        "heads": HEADS,
        "kv_heads": HEADS,
    }
    manifest = {
        "unit": "attention_sum", "fingerprint": {}, "model": model, "detail": detail, "every": 1,
        "layers": list(range(LAYERS)), "heads": list(range(HEADS)),
    }  # fmt: skip
    rng = np.random.default_rng(0)
    sinks = [place_sinks(rng) for _ in range(LAYERS * HEADS)]
    final = rng.integers(1, 2000, KEYS)
    order = np.concatenate([PROMPT + b + rng.permutation(BLOCK) for b in range(0, KEYS - PROMPT, BLOCK)])
    with TraceWriter.create(folder, manifest, samples=1) as writer:
        with writer.sample(0) as sample:
            for step in range(STEPS):
                masked = np.zeros(KEYS, bool)
                masked[order[step:]] = True
                sample.add(
                    one_step(
                        rng,
                        step,
                        sinks=sinks,
                        final=final,
                        masked=masked,
                        committed=order[step : step + 1],
                        norms=norms,
                    )
                )
            tokens = {int(i): (f"t{i}", CLASSES[1 + i % 6]) for i in np.unique(final)}
            ids = final.astype(np.int32)
            sample.end(
                SampleEnd(prompt=None, text=None, prompt_length=PROMPT, ids=ids, tokens=tokens | {MASK: ("", "mask")})
            )
        writer.finish()


def place_sinks(rng: np.random.Generator) -> np.ndarray:
    """Weights [step, key] of the sinks of one head: a few that stay, drift or flicker."""
    weight = np.zeros((STEPS, KEYS), np.float32)
    for _ in range(rng.integers(1, 4)):
        first, life = rng.integers(0, STEPS), rng.integers(5, STEPS)
        place, speed, strength = rng.integers(0, KEYS), rng.choice([0, 0, 0, 1, -1]), rng.uniform(4, 30)
        steps = np.arange(first, min(STEPS, first + life))
        weight[steps, (place + speed * (steps - first) // 4) % KEYS] += strength
    for _ in range(rng.integers(0, 6)):
        weight[rng.integers(0, STEPS), rng.integers(0, KEYS)] += rng.uniform(4, 10)
    return weight


def one_step(rng, step, *, sinks, final, masked, committed, norms) -> StepRows:
    shape = (LAYERS, HEADS, KEYS)
    raw = rng.lognormal(0, 0.5, shape).astype(np.float32)
    raw += np.stack([weight[step] for weight in sinks]).reshape(shape)
    received = raw * (KEYS / raw.sum(-1, keepdims=True))
    share = np.float32(masked.mean()) * rng.uniform(0.8, 1.2, shape).astype(np.float32).clip(0, 1)
    one = np.ones((LAYERS, 1, KEYS), np.float32)
    groups = {
        "masked": GroupRows(received=received * share, expected=one * masked.mean(), viewers=one * masked.sum()),
        "unmasked": GroupRows(
            received=received * (1 - share), expected=one * (1 - masked.mean()), viewers=one * (KEYS - masked.sum())
        ),
    }
    extra = {}
    if norms:
        extra = {
            name: rng.lognormal(0, 0.3, shape).astype(np.float32) for name in ("key_norm", "value_norm", "output_norm")
        }
        extra["hidden_norm"] = rng.lognormal(0, 0.3, (LAYERS, KEYS)).astype(np.float32)
        extra |= {name: rng.uniform(1, 20, shape[:2]).astype(np.float32) for name in ("output_rank", "output_size")}
    attention = AttentionRows(
        layers=range(LAYERS), heads=range(HEADS), received=received, expected=one, viewers=one * KEYS, queries=KEYS,
        groups=groups, **extra,
    )  # fmt: skip
    block = PROMPT + (step // BLOCK) * BLOCK
    return StepRows(
        step=step,
        ids=np.where(masked, MASK, final).astype(np.int32),
        masked=masked,
        committed=committed.astype(np.int32),
        committed_ids=final[committed].astype(np.int32),
        confidence=np.where(masked, 0.5, np.nan).astype(np.float32),
        block=(block, block + BLOCK),
        seconds=0.0,
        attention=attention,
    )


if __name__ == "__main__":
    main()
