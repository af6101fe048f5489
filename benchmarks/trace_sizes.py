"""How small a trace can be, and how quickly it is read: `python benchmarks/trace_sizes.py`.

Float width x compression x encoding on the same arrays, then a whole trace of 128 steps, 32 layers, 32 heads, 192 keys.

The arrays are sums of softmax attention of random queries and keys with planted sinks: 32 heads, 192 keys, from all
queries, from the masked and from the unmasked ones. Files are written by pyarrow alone, as the trace writer does: one
row group a layer, lists of floats, no dictionary. Beside them: the L2 norms of the keys. One thread, processor time,
best of three.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sinklens.traces.read import open_trace
from sinklens.traces.rows import AttentionRows, GroupRows, SampleEnd, StepRows
from sinklens.traces.storage import round_mantissa
from sinklens.traces.write import TraceWriter

LAYERS, STEPS, HEADS, KEYS, WIDTH = 4, 16, 32, 192, 64
WIDTHS = ("float32", "16 bits", "12 bits", "10 bits", "8 bits", "float16")
CODECS = (("snappy", None), ("zstd", 1), ("zstd", 3), ("zstd", 9))


def attention_sums(seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Received [layer, step, head, key] of all, masked and unmasked queries; and the norms of the keys."""
    rng = np.random.default_rng(seed)
    shape = (LAYERS, STEPS, HEADS, KEYS)
    received = {name: np.zeros(shape, np.float32) for name in ("received", "received_masked", "received_unmasked")}
    norms = np.zeros(shape, np.float32)
    for layer in range(LAYERS):
        for step in range(STEPS):
            query, key = rng.standard_normal((2, HEADS, KEYS, WIDTH), dtype=np.float32)
            key *= rng.lognormal(0.3, 0.4, (HEADS, KEYS, 1)).astype(np.float32)
            logits = query @ key.swapaxes(-1, -2) / np.sqrt(WIDTH)
            sinks = rng.integers(0, KEYS, (HEADS, 2))
            np.put_along_axis(logits, sinks[:, None], logits.max(-1, keepdims=True) + 1, axis=-1)
            maps = np.exp(logits - logits.max(-1, keepdims=True))
            maps /= maps.sum(-1, keepdims=True)
            masked = np.arange(KEYS) >= 64 + step * 8
            received["received"][layer, step] = maps.sum(1)
            received["received_masked"][layer, step] = maps[:, masked].sum(1)
            received["received_unmasked"][layer, step] = maps[:, ~masked].sum(1)
            norms[layer, step] = np.linalg.norm(key, axis=-1)
    return received, {"key_norm": norms}


def narrowed(values: np.ndarray, width: str) -> np.ndarray:
    if width.startswith("float"):
        return values.astype(width)
    return round_mantissa(values, int(width.split(maxsplit=1)[0]))


def write(path: Path, arrays: dict[str, np.ndarray], *, codec: str, level: int | None, split: bool) -> None:
    kind = pa.from_numpy_dtype(next(iter(arrays.values())).dtype)
    lists = pa.list_(pa.field("element", kind, nullable=False))
    encoding = {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in arrays} if split else None
    schema = pa.schema([(name, lists) for name in arrays])
    options = {"compression": codec, "compression_level": level, "column_encoding": encoding}
    with pq.ParquetWriter(path, schema, use_dictionary=False, write_statistics=False, **options) as writer:
        for layer in range(LAYERS):
            columns = [
                pa.ListArray.from_arrays(np.arange(0, values[layer].size + 1, KEYS, np.int32), values[layer].ravel())
                for values in arrays.values()
            ]
            writer.write_table(pa.Table.from_arrays([column.cast(lists) for column in columns], schema=schema))


def best(action, repeats: int = 3) -> float:
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        action()
        seconds.append(time.process_time() - start)
    return min(seconds)


def compare(title: str, arrays: dict[str, np.ndarray], folder: Path) -> None:
    count = sum(values.size for values in arrays.values())
    print(f"\n{title}: {count / 1e6:.1f} million values")
    print("| width | compression | encoding | bytes a value | write ns | read ns | largest relative error |")
    print("|---|---|---|---|---|---|---|")
    for width in WIDTHS:
        stored = {name: narrowed(values, width) for name, values in arrays.items()}
        pairs = [(values, stored[name].astype(np.float64)) for name, values in arrays.items()]
        error = max(np.abs(after[before > 0] / before[before > 0] - 1).max() for before, after in pairs)
        for codec, level in CODECS:
            for split in (False, True):
                path = folder / "values.parquet"
                write_s = best(lambda: write(path, stored, codec=codec, level=level, split=split))  # noqa: B023
                read_s = best(lambda: pq.read_table(path, use_threads=False))  # noqa: B023
                size = path.stat().st_size / count
                name = codec if level is None else f"{codec} {level}"
                print(
                    f"| {width} | {name} | {'split' if split else 'plain'} | {size:.2f} | {write_s / count * 1e9:.1f} "
                    f"| {read_s / count * 1e9:.1f} | {error:.1e} |",
                    flush=True,
                )


def whole_trace(folder: Path) -> None:
    """Write and read a sample of 128 steps x 32 layers with groups, in both details."""
    received, _ = attention_sums()
    rng = np.random.default_rng(1)
    layers, steps = 32, 128
    uniform = np.ones((layers, 1, KEYS), np.float32)
    model = {
        "name": "benchmark",
        "family": "none",
        "causal": False,
        "layers": layers,
        "heads": HEADS,
        "kv_heads": HEADS,
    }
    print("\n| detail | MB | write s | read `received` of all layers s | with groups s |\n|---|---|---|---|---|")
    for detail in ("full", "sinks"):
        manifest = {"fingerprint": {}, "model": model, "detail": detail, "every": 1}
        manifest |= {"layers": list(range(layers)), "heads": list(range(HEADS))}
        seconds = 0.0
        with TraceWriter.create(folder / detail, manifest, samples=1) as writer, writer.sample(0) as sample:
            for step in range(steps):
                sums = {name: varied(values[:, step % STEPS], rng) for name, values in received.items()}
                rows = step_rows(step, sums, uniform, masked=KEYS - 64 - step % STEPS * 8)
                start = time.process_time()
                sample.add(rows)
                seconds += time.process_time() - start
            start = time.process_time()
            sample.end(SampleEnd(prompt=None, text=None, prompt_length=64, ids=np.arange(KEYS), tokens={}))
            seconds += time.process_time() - start
        trace, reading = open_trace(folder / detail), []
        for groups in (False, True):
            start = time.process_time()
            for layer in trace.layers:
                trace.layer(0, layer, groups=groups)
            reading.append(time.process_time() - start)
        size = sum(path.stat().st_size for path in trace.path.rglob("*") if path.is_file()) / 1e6
        print(f"| {detail} | {size:.1f} | {seconds:.1f} | {reading[0]:.2f} | {reading[1]:.2f} |", flush=True)


def varied(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """32 layers from 4. Numbers must not repeat between layers and steps, else they would compress too well."""
    many = np.tile(values, (8, 1, 1))
    return many * rng.uniform(0.9, 1.1, many.shape).astype(np.float32)


def step_rows(step: int, sums: dict[str, np.ndarray], uniform: np.ndarray, *, masked: int) -> StepRows:
    groups = {
        name: GroupRows(received=sums[f"received_{name}"], expected=uniform * count / KEYS, viewers=uniform * count)
        for name, count in (("masked", masked), ("unmasked", KEYS - masked))
    }
    attention = AttentionRows(
        layers=range(len(uniform)),
        heads=range(HEADS),
        received=sums["received"],
        expected=uniform,
        viewers=uniform * KEYS,
        queries=KEYS,
        groups=groups,
    )
    return StepRows(
        step=step,
        ids=np.arange(KEYS),
        masked=np.arange(KEYS) >= KEYS - masked,
        committed=np.array([step]),
        committed_ids=np.array([step]),
        confidence=np.full(KEYS, 0.5, np.float32),
        attention=attention,
    )


def main() -> int:
    pa.set_cpu_count(1)
    received, norms = attention_sums()
    with tempfile.TemporaryDirectory() as folder:
        compare("attention received", received, Path(folder))
        compare("norms", norms, Path(folder))
        whole_trace(Path(folder))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
