"""The atlas of one model: norms of keys and values beside the attention they get, unit after unit, into a folder.

    plan.json              what decides the rows, and what the units are; written first
    heads/*.parquet        causal: one row a layer and head (key_norms.py)
    layers/*.parquet       causal: how alike two layers rank the keys
    peaks/*.parquet        causal: what zeroing peaked dimensions changes (peaks.py)
    steps/*.parquet        diffusion: one row a step, layer, head and kind of token (denoising_norms.py)
    null/*.parquet         diffusion: the same under random orders of the tokens
    timings/*.parquet      seconds of each unit
    result.json            what they come to (atlas_result.py)

A unit is a chunk of text for a causal model, a prompt and its generation for a diffusion model. One file a unit and
table, each written whole, the main table last: a run that was broken off goes on where it was, and more units can be
asked for later.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError
from sinklens.evaluation import denoising_norms, key_norms, peaks
from sinklens.evaluation.row_files import read_batch
from sinklens.evaluation.store import differences
from sinklens.files import written_whole
from sinklens.locks import refuse_strangers, writing_alone
from sinklens.recording.identity import describe_model, describe_sampler, hash_json

FORMAT = 1
PLAN, RESULT = "plan.json", "result.json"
CAUSAL = {"layers": key_norms.LAYERS, "peaks": peaks.PEAKS, "heads": key_norms.HEADS}  # the last is written last
DIFFUSION = {"null": denoising_norms.NULL, "steps": denoising_norms.STEPS}
TIMINGS = {"unit": "int64", "seconds": "float64"}
Row = dict[str, Any]
Tell = Callable[[int, int, float | None], None]  # units done, of how many, seconds left


def _silent(_done: int, _total: int, _left: float | None) -> None:
    """Nobody is told."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Atlas:
    """What is to be measured, and how."""

    units: Sequence[Sequence[int]]  # ids of chunks or prompts
    tables: Mapping[str, Mapping[str, str]]  # columns and their types
    measure: Callable[[int, Sequence[int]], Mapping[str, Sequence[Row]]]  # of one unit, all tables
    decides: Mapping[str, Any]  # what decides rows beside the units
    told: Mapping[str, Any]  # for readers

    def document(self) -> dict[str, Any]:
        """plan.json."""
        units = [hash_json(list(unit))[:16] for unit in self.units]
        return {"atlas": FORMAT, "decides": dict(self.decides), "told": dict(self.told), "units": units}


def causal_atlas(
    model: Any,
    chunks: Sequence[Sequence[int]],
    *,
    probe: peaks.Probe | None = None,
    seed: int = 0,
    nulls: int = key_norms.NULLS,
    told: Mapping[str, Any] | None = None,
) -> Atlas:
    """Of a causal model, over chunks of text of equal length."""
    probed = probe or peaks.Probe(seed=seed)
    lengths = {len(chunk) for chunk in chunks}
    if len(lengths) != 1:
        raise UsageError(f"chunks have {sorted(lengths)} tokens; expected one length for all, as ALR grows with it")

    def measure(unit: int, ids: Sequence[int]) -> dict[str, list[Row]]:
        looked = key_norms.look(model, ids)
        return {
            "layers": list(key_norms.layer_rows(looked, unit=unit)),
            "peaks": peaks.probe_chunk(model, ids, probed, unit=unit),
            "heads": key_norms.head_rows(looked, unit=unit, seed=seed, nulls=nulls),
        }

    decides = {**_model(model), "tokens": lengths.pop(), "seed": seed, "nulls": nulls, "peaks": asdict(probed)}
    return Atlas(units=chunks, tables=CAUSAL, measure=measure, decides=decides, told=_told(model, told))


def diffusion_atlas(
    model: Any,
    prompts: Sequence[Sequence[int]],
    sampler: Any,
    *,
    seed: int = 0,
    nulls: int = key_norms.NULLS,
    told: Mapping[str, Any] | None = None,
) -> Atlas:
    """Of a masked diffusion model, over prompts and what it generates behind them."""

    def measure(unit: int, ids: Sequence[int]) -> dict[str, list[Row]]:
        rows, null = denoising_norms.measure_run(model, ids, sampler, unit=unit, seed=seed, nulls=nulls)
        return {"null": null, "steps": rows}

    decides = {**_model(model), "sampler": describe_sampler(sampler), "seed": seed, "nulls": nulls}
    return Atlas(units=prompts, tables=DIFFUSION, measure=measure, decides=decides, told=_told(model, told))


def run_atlas(atlas: Atlas, folder: Path, *, tell: Tell = _silent) -> int:
    """Measure the units that are not in the folder yet; gives how many that were."""
    document = atlas.document()
    refuse_other(folder, document)
    with writing_alone(folder):
        _claim(folder, document)
        last, total = list(atlas.tables)[-1], len(atlas.units)
        missing = [unit for unit in range(total) if not _file(folder, last, unit).exists()]
        began = time.monotonic()
        for turn, unit in enumerate(missing):
            left = (time.monotonic() - began) / turn * (len(missing) - turn) if turn else None
            tell(total - len(missing) + turn, total, left)
            _measure_unit(atlas, folder, unit)
        return len(missing)


def _measure_unit(atlas: Atlas, folder: Path, unit: int) -> None:
    began = time.monotonic()
    found = atlas.measure(unit, atlas.units[unit])
    seconds = [{"unit": unit, "seconds": time.monotonic() - began}]
    for name, rows, columns in [
        ("timings", seconds, TIMINGS),
        *((name, found[name], columns) for name, columns in atlas.tables.items()),
    ]:
        _write(_file(folder, name, unit), rows, columns)


def refuse_other(folder: Path, document: Mapping[str, Any]) -> None:
    """A folder that holds something else than this atlas, whole or begun."""
    refuse_strangers(folder, what="atlas", mark=PLAN)
    if not (folder / PLAN).exists():
        return
    there = read_plan(folder)
    other = differences(there["decides"], document["decides"])
    pairs = zip(there["units"], document["units"], strict=False)  # one may have more
    strange = next((number for number, (before, now) in enumerate(pairs) if before != now), None)
    if strange is not None:
        other.append(f"unit {strange} is another text")
    if other:
        raise UsageError(
            f"{folder} holds another atlas: {'; '.join(other)}; use the same settings, or write to another folder"
        )


def _claim(folder: Path, document: Mapping[str, Any]) -> None:
    """Written where it is new, or has more units than before."""
    from sinklens.files import write_json

    if not (folder / PLAN).exists() or len(read_plan(folder)["units"]) < len(document["units"]):
        write_json(folder / PLAN, document)


def read_plan(folder: Path) -> dict[str, Any]:
    """What the atlas of this folder measures."""
    import json

    try:
        plan = json.loads((folder / PLAN).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{folder} holds no atlas: {PLAN} cannot be read ({error}); make one with `sinklens atlas`"
        ) from None
    if not isinstance(plan, dict) or plan.get("atlas") != FORMAT:
        raise UsageError(
            f"{folder / PLAN} is not of an atlas that this version reads; make it anew with `sinklens atlas`"
        )
    return plan


def read_table(folder: Path, name: str, *, units: int | None = None) -> Any:
    """A table over the units that are there, or the first so many of them, as a pyarrow.Table."""
    import pyarrow as pa

    files = sorted((folder / name).glob("*.parquet"))
    chosen = [path for path in files if units is None or int(path.stem) < units]
    if not chosen:
        raise UsageError(f"{folder} holds no rows of {name} yet; run `sinklens atlas` with --to {folder}")
    return pa.concat_tables([read_batch(path) for path in chosen])


def _model(model: Any) -> dict[str, Any]:
    told = describe_model(model, None)
    names = ("name", "layers", "heads", "kv_heads", "causal", "dtype", "config_sha256", "weights_sha256")
    return {"model": {name: told[name] for name in names}, "device": model.device.type}


def _told(model: Any, told: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"model_source": model.spec.source, **(told or {})}


def _file(folder: Path, table: str, unit: int) -> Path:
    return folder / table / f"{unit:06d}.parquet"


def _write(path: Path, rows: Sequence[Row], columns: Mapping[str, str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    lists = {"list<float>": pa.list_(pa.float32())}
    schema = pa.schema([(name, lists.get(kind) or pa.type_for_alias(kind)) for name, kind in columns.items()])
    with written_whole(path) as temporary:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), temporary, compression="zstd")
