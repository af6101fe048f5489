"""The atlas: diffusion runs measured as plain loops would, folders that go on, and results that follow from rows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import sinklens as sl
from sampling.tiny_causal import tiny_causal
from sinklens.errors import UsageError
from sinklens.evaluation.atlas import (
    CAUSAL,
    DIFFUSION,
    Atlas,
    causal_atlas,
    diffusion_atlas,
    read_table,
    run_atlas,
)
from sinklens.evaluation.atlas_numbers import cube, mean_known, null_band, over_units
from sinklens.evaluation.atlas_result import summarise, write_result
from sinklens.evaluation.denoising_norms import KINDS, NULL, STEPS, Moment, measure_run, moments
from sinklens.evaluation.key_norms import Looked, head_rows, layer_rows
from sinklens.evaluation.peaks import Probe
from sinklens.sinks.alr import FEWEST, STAKE

LENGTH = 20
PROMPTS = [list(range(100, 100 + size)) for size in (12, 15)]
PROBE = Probe(keys=4, dims=2, draws=2)


@pytest.fixture(scope="module")
def dream() -> Any:
    return sl.load("tiny-dream")


@pytest.fixture(scope="module")
def sampler() -> sl.DreamSampler:
    return sl.DreamSampler(steps=LENGTH, length=LENGTH, alg="entropy")


@pytest.fixture(scope="module")
def causal() -> Any:
    return sl.wrap(tiny_causal("llama"))


@pytest.fixture(scope="module")
def chunks() -> list[list[int]]:
    drawn: list[list[int]] = torch.randint(1, 64, (4, 40), generator=torch.Generator().manual_seed(1)).tolist()
    return drawn


@pytest.fixture(scope="module")
def run(dream, sampler) -> list[Moment]:
    return list(moments(dream, PROMPTS[0], sampler))


@pytest.fixture(scope="module")
def measured(dream, sampler) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return measure_run(dream, PROMPTS[0], sampler, unit=0, nulls=6)


def test_every_forward_is_seen_as_the_observer_sees_it(dream, sampler, run) -> None:
    with sl.observe(dream) as seen:
        out = sl.generate(dream, [PROMPTS[0]], sampler)
    assert out.canvases is not None
    assert len(run) == len(seen.steps) == LENGTH
    for moment, step, canvas in zip(run, seen.steps, out.canvases, strict=False):
        np.testing.assert_allclose(moment.received, step.received[:, 0], rtol=1e-5)
        np.testing.assert_allclose(moment.key_norm, step.key_norm[:, 0], rtol=1e-5)
        np.testing.assert_allclose(moment.value_norm, step.value_norm[:, 0], rtol=1e-5)
        np.testing.assert_array_equal(moment.masked, canvas[0] == dream.spec.mask_id)  # before the step decides


def test_kinds_are_disjoint_and_complete(run) -> None:
    for moment in run:
        kinds = [moment.members(kind) for kind in KINDS[:3]]
        assert (np.sum(kinds, axis=0) == 1).all()
        assert kinds[0].sum() == 12
        assert moment.members("all").all()
    left = [int(moment.members("masked").sum()) for moment in run]
    assert left[0] == LENGTH
    assert left == sorted(left, reverse=True)


def test_rows_are_plain_rank_correlations(run, measured) -> None:
    rows, null = measured
    assert all(set(row) == set(STEPS) for row in rows)
    assert all(set(row) == set(NULL) for row in null)
    known = {(row["step"], row["layer"], row["head"], row["kind"]): row for row in rows}
    for step, layer, head, kind in [
        (3, 2, 1, "prompt"),
        (5, 1, 3, "masked"),
        (14, 7, 0, "committed"),
        (17, 4, 2, "all"),
    ]:
        moment = run[step]
        chosen = moment.members(kind)
        row, received = known[step, layer, head, kind], moment.received[layer, head, chosen]
        assert row["keys"] == chosen.sum()
        for name, norms in (("key", moment.key_norm), ("value", moment.value_norm)):
            size = norms[layer, head, chosen]
            assert row[name] == pytest.approx(spearmanr(size, received).statistic, abs=1e-6)
            low = np.argsort(size)[: -(-len(size) // 2)]
            assert row[f"{name}_kept"] == pytest.approx(received[low].sum() / received.sum(), abs=1e-6)
    assert min(row["keys"] for row in rows) == FEWEST
    for kind in KINDS:
        enough = {moment.step for moment in run if moment.members(kind).sum() >= FEWEST}
        assert {row["step"] for row in rows if row["kind"] == kind} == enough
    assert len(null) == 8 * 4 * 4
    assert all(len(row["key"]) == 6 for row in null)


def test_masked_tokens_are_one_vector_before_the_first_attention(measured) -> None:
    """Their norms differ by rounding at most, and ranks of rounding would be ranks of positions."""
    rows, null = measured
    first = [row for row in rows if row["kind"] == "masked" and row["layer"] == 0]
    assert first
    assert all(row[name] is None for row in first for name in ("key", "value", "key_kept", "value_kept"))
    assert [row["key"] for row in null if row["kind"] == "masked" and row["layer"] == 0] == [[None] * 6] * 4
    assert all(row["key"] is not None for row in rows if row["kind"] == "masked" and row["layer"] > 0)


def test_the_null_of_a_run_uses_one_order_for_all_steps() -> None:
    """Norms and attention that never change: every step has the same null, so the mean over steps varies as one."""
    rng = np.random.default_rng(0)
    received, norms = rng.random((1, 1, 30)), rng.random((1, 1, 30))
    still = [
        Moment(step=step, received=received, key_norm=norms, value_norm=norms, masked=np.zeros(30, bool), prompt=30)
        for step in range(10)
    ]

    class Still:
        pass

    import sinklens.evaluation.denoising_norms as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "moments", lambda *_, **__: iter(still))
        _, null = measure_run(Still(), [], None, unit=0, nulls=200)
    drawn = np.array(next(row["key"] for row in null if row["kind"] == "prompt"))
    assert drawn.std() == pytest.approx(1 / np.sqrt(29), rel=0.2)


def test_a_causal_model_has_no_denoising(causal, sampler) -> None:
    with pytest.raises(UsageError, match="'llama' is no masked diffusion model; use"):
        next(moments(causal, PROMPTS[0], sampler))


@pytest.fixture(scope="module")
def made(tmp_path_factory, causal, chunks) -> Path:
    folder = tmp_path_factory.mktemp("atlas") / "causal"
    assert run_atlas(causal_atlas(causal, chunks, probe=PROBE, nulls=5), folder) == 4
    return folder


def test_a_folder_goes_on_and_may_grow(tmp_path, causal, chunks, made) -> None:
    told: list[tuple[int, int]] = []

    def stop(done: int, total: int, _left: float | None) -> None:
        told.append((done, total))
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_atlas(causal_atlas(causal, chunks[:3], probe=PROBE, nulls=5), tmp_path / "a", tell=stop)
    assert told == [(0, 3), (1, 3), (2, 3)]
    assert run_atlas(causal_atlas(causal, chunks, probe=PROBE, nulls=5), tmp_path / "a") == 2
    for name in ("heads", "layers", "peaks"):
        assert read_table(tmp_path / "a", name).equals(read_table(made, name))
    assert summarise(tmp_path / "a") == summarise(made)
    assert summarise(made, units=2)["units"] == 2


def test_another_atlas_is_refused(tmp_path, causal, chunks, made) -> None:
    before = (made / "plan.json").read_bytes()
    with pytest.raises(UsageError, match="holds another atlas: seed: 0 there, 1 now; use the same settings"):
        run_atlas(causal_atlas(causal, chunks, probe=PROBE, nulls=5, seed=1), made)
    with pytest.raises(UsageError, match="unit 1 is another text"):
        run_atlas(causal_atlas(causal, [chunks[0], chunks[2]], probe=PROBE, nulls=5), made)
    assert (made / "plan.json").read_bytes() == before
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not empty and holds no atlas"):
        run_atlas(causal_atlas(causal, chunks, probe=PROBE), tmp_path)
    with pytest.raises(UsageError, match=r"note.txt is a file; give a folder"):
        run_atlas(causal_atlas(causal, chunks, probe=PROBE), tmp_path / "note.txt")
    with pytest.raises(UsageError, match=r"chunks have \[39, 40\] tokens; expected one length"):
        causal_atlas(causal, [chunks[0], chunks[1][1:]])
    with pytest.raises(UsageError, match=r"holds no atlas: plan.json cannot be read"):
        summarise(tmp_path / "nowhere")


def test_the_result_of_a_causal_atlas_follows_from_its_rows(made) -> None:
    document = write_result(made)
    assert json.loads((made / "result.json").read_text("utf-8")) == document
    rows = read_table(made, "heads").to_pylist()
    for entry in document["heads"]:
        own = [row for row in rows if (row["layer"], row["head"]) == (entry["layer"], entry["head"])]
        assert entry["alr"]["value"] == pytest.approx(np.mean([row["alr"] for row in own]))
        assert entry["alr"]["n"] == 4
        assert entry["alr"]["low"] <= entry["alr"]["value"] <= entry["alr"]["high"]
        stake = np.mean([row["expected"] / row["keys"] for row in own])
        assert entry["stake"] == pytest.approx(stake)
        if stake >= STAKE:
            total = sum(row["alr"] for row in own) / sum(row["expected"] for row in own)
            assert entry["ratio"]["value"] == pytest.approx(total)
        else:
            assert entry["ratio"] is None
    for layer in document["layers"]:
        own = [row["next"] for row in rows if row["layer"] == layer["layer"]]
        assert layer["next"]["value"] == pytest.approx(np.mean(own))
        assert layer["null"]["next"]["low"] < layer["null"]["next"]["high"]
    pairs = read_table(made, "layers").to_pylist()
    mean = np.mean([row["correlation"] for row in pairs])
    np.testing.assert_allclose(document["between_layers"], [[1, mean], [mean, 1]])
    best = document["curves"][0]
    (same,) = [one for one in document["heads"] if (one["layer"], one["head"]) == (best["layer"], best["head"])]
    assert same["ratio"]["value"] == min(one["ratio"]["value"] for one in document["heads"] if one["ratio"])
    peaks = {row["unit"]: row for row in read_table(made, "peaks").to_pylist() if row["edit"] == "peaks"}
    none = {row["unit"]: row for row in read_table(made, "peaks").to_pylist() if row["edit"] == "none"}
    cost = np.mean([peaks[unit]["nll"] - none[unit]["nll"] for unit in range(4)])
    assert document["peaks"][0]["nll_change"]["value"] == pytest.approx(cost)
    # Two layers: none behind the ones the paper leaves alone.
    assert [one["holds"] for one in document["findings"][:9]] == [None] * 9


def test_the_result_of_a_diffusion_atlas_follows_from_its_rows(tmp_path, dream, sampler) -> None:
    assert run_atlas(diffusion_atlas(dream, PROMPTS, sampler, nulls=10), tmp_path) == 2
    document = write_result(tmp_path)
    rows = read_table(tmp_path, "steps").to_pylist()
    assert [(one["kind"], one["norm"]) for one in document["kinds"]] == [
        (k, n) for k in KINDS for n in ("key", "value")
    ]
    for entry in document["kinds"]:
        mine = [row for row in rows if row["kind"] == entry["kind"] and row[entry["norm"]] is not None]
        means: dict[int, list[float]] = {}
        for unit in range(2):
            cells: dict[tuple[int, int], list[float]] = {}
            for row in mine:
                if row["unit"] == unit:
                    cells.setdefault((row["layer"], row["head"]), []).append(row[entry["norm"]])
            means[unit] = [float(np.mean(values)) for values in cells.values()]
        by_unit = [np.mean(values) for values in means.values()]
        assert entry["mean"]["value"] == pytest.approx(np.mean(by_unit))
        assert entry["mean"]["low"] == pytest.approx(min(by_unit), abs=0.2)
        assert entry["heads_known"] == (28 if entry["kind"] == "masked" else 32)
        assert entry["null"]["low"] < 0 < entry["null"]["high"]
        assert np.shape(entry["layers_by_step"]) == (8, LENGTH)
        assert len(entry["steps"]) == LENGTH
    assert len(document["findings"]) == 6
    for found, entry in zip(document["findings"], document["kinds"], strict=False):
        if found["holds"]:
            assert entry["mean"]["high"] < 0
            assert entry["mean"]["value"] < entry["null"]["low"]


def looked(rng: np.random.Generator, *, sign: float) -> Looked:
    """Four layers of two heads. Behind layer 1 attention falls with the norm (sign 1) or grows; before, the reverse.

    Head 1 of layer 3 is flat.
    """
    norms = rng.permuted(np.tile(np.linspace(1, 4, 60), (4, 2, 1)), axis=-1)
    slope = np.array([-sign, -sign, sign, sign])[:, None, None]
    paid = np.exp(-slope * norms + 0.05 * rng.normal(size=norms.shape))
    paid[3, 1] = 1 + 0.01 * rng.normal(size=60)
    paid *= 0.9 / paid.sum(-1, keepdims=True)
    counted = np.arange(60) < 53
    return Looked(attention=paid, share=60 * paid, counted=counted, key_norm=norms, value_norm=norms, token=0)


def made_up(folder: Path, *, sign: float) -> dict[str, Any]:
    """The result of an atlas whose chunks are made up."""

    def measure(unit: int, _ids: Any) -> dict[str, list[dict[str, Any]]]:
        rng = np.random.default_rng(unit)
        seen = looked(rng, sign=sign)
        probe = []
        for edit, moved in (("none", 0.0), ("peaks", 0.4), ("random", 0.4 - 0.3 * sign), ("elsewhere", 0.2)):
            change = moved + 0.01 * rng.normal() if moved else 0.0
            told = {"unit": unit, "edit": edit, "draw": 0, "nll": 2 + change, "change": change, "removed": 0.5}
            probe.append({**told, "change_by_layer": [change] * 4 if moved else []})
        layers = list(layer_rows(seen, unit=unit))
        return {"layers": layers, "peaks": probe, "heads": head_rows(seen, unit=unit, nulls=8)}

    decides = {"model": {"name": "made up", "causal": True}, "tokens": 60}
    run_atlas(
        Atlas(units=[[unit] for unit in range(6)], tables=CAUSAL, measure=measure, decides=decides, told={}), folder
    )
    return summarise(folder)


def test_claims_hold_where_they_were_put_in_and_not_where_the_reverse_was(tmp_path: Path) -> None:
    document = made_up(tmp_path / "as claimed", sign=1)
    assert [one["holds"] for one in document["findings"]] == [True] * 10
    assert "places 1 and 2 of 4" in (says := document["findings"][5]["says"]) or "places 2 and 1 of 4" in says
    assert "better than chance in 2 of 2 layers, worse in 0" in document["findings"][3]["says"]
    reverse = made_up(tmp_path / "reversed", sign=-1)
    assert [one["holds"] for one in reverse["findings"]] == [False] * 10
    assert "better than chance in 0 of 2 layers, worse in 2" in reverse["findings"][3]["says"]


def test_flat_heads_have_no_ratio(tmp_path: Path) -> None:
    heads = made_up(tmp_path, sign=1)["heads"]
    for one in heads:
        flat = (one["layer"], one["head"]) == (3, 1)
        assert (one["ratio"] is None) == (one["ratio_rest"] is None) == flat
        assert (one["stake"] < STAKE) == flat


@pytest.mark.parametrize(("level", "holds", "turned"), [(-0.4, True, False), (0.4, False, True), (-0.02, False, False)])
def test_a_diffusion_claim_must_beat_chance(tmp_path: Path, level: float, holds: bool, turned: bool) -> None:
    """The last is below 0 with certainty, and well within what random orders give."""

    def measure(unit: int, _ids: Any) -> dict[str, list[dict[str, Any]]]:
        where = {"unit": unit, "layer": 0, "head": 0, "kind": "masked"}
        found = {"key": level + 0.001 * unit, "value": None, "key_kept": 0.5, "value_kept": None}
        null = where | {"key": np.linspace(-0.2, 0.2, 9).tolist(), "value": [None] * 9}
        return {"null": [null], "steps": [where | found | {"step": 0, "keys": 9}]}

    decides = {"model": {"name": "made up", "causal": False}}
    run_atlas(Atlas(units=[[0], [1], [2]], tables=DIFFUSION, measure=measure, decides=decides, told={}), tmp_path)
    key, value = summarise(tmp_path)["findings"]
    assert key["holds"] is holds
    assert ("the reverse holds" in key["says"]) is turned
    assert value["holds"] is None and value["says"] == "no step has masked tokens whose value norms differ"


def test_arrays_and_means_leave_out_what_is_not_there() -> None:
    import pyarrow as pa

    table = pa.table(
        {"unit": [5, 9, 9], "layer": [1, 0, 1], "x": [1.0, None, 3.0], "list": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}
    )
    found = cube(table, "x", ("unit", "layer"))
    np.testing.assert_array_equal(found, [[np.nan, 1], [np.nan, 3]])
    np.testing.assert_array_equal(mean_known(found, 0), [np.nan, 2])
    assert cube(table, "list", ("unit", "layer")).shape == (2, 2, 2)
    first, second = over_units(found)
    assert (first["value"], first["n"]) == (None, 0)
    assert (second["value"], second["low"], second["high"], second["n"]) == (2.0, 1.0, 3.0, 2)


def test_a_band_of_chance_narrows_with_units() -> None:
    drawn = np.random.default_rng(0).normal(size=(100, 3, 20))
    one, many = null_band(drawn[:1]), null_band(drawn)
    assert all(
        wide["high"] - wide["low"] > 5 * (slim["high"] - slim["low"]) for wide, slim in zip(one, many, strict=True)
    )
