"""Selectors against baselines: rows that can be gone on with, equal counts, and numbers by hand."""

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.evaluation.selection_cells import Link, Spot, cross, parse_floats
from sinklens.evaluation.selection_controls import CONTROLS, ranked_by, run_controlled
from sinklens.evaluation.selection_experiment import FixedModel, SelectionExperiment, TrainedRanking
from sinklens.evaluation.selection_maps import token_maps
from sinklens.evaluation.selection_result import summarise
from sinklens.evaluation.selection_run import run
from sinklens.evaluation.selection_speed import PASSES, measure_speed
from sinklens.evaluation.selection_statistics import correlation
from sinklens.evaluation.selection_store import SelectionStore
from sinklens.selection.baselines import run_ranked
from sinklens.selection.calibration import calibrate
from sinklens.selection.channel import AWGN, Erasure
from sinklens.selection.cost import backbone_macs
from sinklens.selection.data import Images
from sinklens.selection.gates import GateStart
from sinklens.selection.selector import Gating, Selector
from sinklens.selection.vit import SmallViT, ViTShape

SHAPE = ViTShape(image=16, patch=4, width=16, blocks=4, heads=2, classes=3)
COUNT = 10
METHODS = ["random", "norm", "cls", "tome", "random+budget"]


def pictures(count: int = COUNT) -> Images:
    generator = torch.Generator().manual_seed(1)
    foreground = torch.zeros(count, 16, 16, dtype=torch.bool)
    foreground[:, 4:10, 4:12] = True
    return Images(
        images=torch.rand(count, 1, 16, 16, generator=generator),
        labels=torch.arange(count) % 3,
        foreground=foreground,
        classes=("a", "b", "c"),
        name="made",
    )


@pytest.fixture(scope="module")
def selector() -> Selector:
    start = GateStart(opening=0.0, spread=1.0)  # nothing is trained here: scores must differ from the start
    made = Selector(SmallViT(SHAPE, seed=3), Gating(split=2), start=start, seed=3).eval()
    calibrate(made, pictures(64))
    return made


def experiment(selector: Selector, **changes: Any) -> SelectionExperiment:
    spots = cross(alphas=[0.2, 0.6], snrs=[0.0], erasures=[0.0, 0.3])
    given: dict[str, Any] = {"selector": selector, "name": "small", "images": pictures(), "spots": spots, "batch": 5}
    return SelectionExperiment(**given | changes)


def rows_of(folder: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    names = ("method", "alpha", "channel", "level", "image")
    rows = SelectionStore(folder).read("rows").to_pylist()
    found = {tuple(row[name] for name in names): row for row in rows}
    assert len(found) == len(rows), "a row is there twice"
    return found


@pytest.fixture(scope="module")
def finished(selector: Selector, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("selection") / "a"
    run(experiment(selector, baselines=METHODS), folder)
    return folder


def test_every_cell_has_every_image(finished: Path) -> None:
    rows = rows_of(finished)
    gates, others = (
        3 * 3 * COUNT,
        2 * 3 * len(METHODS) * COUNT,
    )  # budgets x links; at alpha 1 there is nothing to choose
    assert len(rows) == gates + others
    assert {key[0] for key in rows} == {"gate", *METHODS}


def test_rows_are_what_the_selector_computes(finished: Path, selector: Selector) -> None:
    rows, images = rows_of(finished), pictures()
    with torch.no_grad():
        found = selector(images.images, 0.2)
    losses = F.cross_entropy(found.logits, images.labels, reduction="none")
    for image in range(COUNT):
        row = rows["gate", 0.2, "wire", None, image]
        assert row["kept"] == found.kept[:, image].sum(dim=1).tolist()
        assert row["prediction"] == int(found.logits[image].argmax())
        assert row["right"] == (row["prediction"] == row["label"])
        assert row["loss"] == pytest.approx(float(losses[image]), abs=1e-5)
        assert (row["sent"], row["macs"]) == (int(found.sent[image]), int(found.macs[image]))
        masks = np.unpackbits(np.frombuffer(row["mask"], np.uint8), count=3 * 16).reshape(3, 16)
        assert (masks == found.kept[:, image].numpy()).all()
        # The object covers all of two patches and half of two: 48 pixels, 16 in each whole one.
        area = torch.zeros(4, 4)
        area[1, 1:3], area[2, 1:3] = 16.0, 8.0
        wanted = (found.kept[:, image] * area.flatten()).sum(dim=1) / 48
        assert row["recall"] == pytest.approx(wanted.tolist())
    assert 0.05 < np.mean([rows["gate", 0.2, "wire", None, n]["kept"] for n in range(COUNT)]) / 16 < 0.5


def test_baselines_keep_as_many_patches_of_each_image(finished: Path) -> None:
    rows = rows_of(finished)
    for (method, alpha, channel, level, image), row in rows.items():
        gate = rows["gate", alpha, channel, level, image]["kept"]
        if channel == "erasure":  # what arrives differs, what is sent does not
            assert row["kept"][0] == gate[0]
        elif method == "tome":  # one token is left at least
            assert row["kept"] == [max(1, count) for count in gate]
        else:
            assert row["kept"] == gate
        assert (row["mask"] is None) == (method != "gate" or channel != "wire")
        assert (row["recall"] is None) == (method == "tome")


@pytest.mark.parametrize("ranking", ["norm", "tome"])
def test_models_trained_with_a_ranking_run_at_the_gates_counts(
    selector: Selector, ranking: str, tmp_path: Path
) -> None:
    other = Selector(SmallViT(SHAPE, seed=5), Gating(split=2), ranking=ranking, seed=5).eval()
    run(experiment(selector, trained=[TrainedRanking(name="other", selector=other)]), tmp_path)
    rows = {key: row for key, row in rows_of(tmp_path).items() if key[0] == f"trained:{ranking}"}
    assert {key[1] for key in rows} == {0.2, 0.6} and {row["model"] for row in rows.values()} == {"other"}
    over_wire = [rows[f"trained:{ranking}", 0.6, "wire", None, image] for image in range(COUNT)]
    gate = [rows_of(tmp_path)["gate", 0.6, "wire", None, image]["kept"] for image in range(COUNT)]
    least = 1 if ranking == "tome" else 0
    assert [row["kept"] for row in over_wire] == [[max(least, count) for count in counts] for counts in gate]
    assert all((row["recall"] is None) == (ranking == "tome") for row in over_wire)
    with torch.no_grad():
        wanted = run_ranked(other.backbone, pictures().images, torch.tensor(gate).T, ranking, split=2)
    assert [row["prediction"] for row in over_wire] == wanted.logits.argmax(dim=1).tolist()


def test_what_cannot_be_compared(selector: Selector) -> None:
    elsewhere = Selector(SmallViT(SHAPE, seed=5), Gating(split=3), ranking="norm").eval()
    with pytest.raises(UsageError, match="other has its gates or its channel at other blocks than the model"):
        experiment(selector, trained=[TrainedRanking(name="other", selector=elsewhere)])
    with pytest.raises(UsageError, match="small was trained with the ranking 'norm'; expected a model with gates"):
        experiment(elsewhere)


@pytest.mark.parametrize("channel", [None, AWGN(5.0), Erasure(0.3)], ids=["wire", "noise", "erasure"])
def test_controls_differ_from_the_selector_in_the_choice_alone(selector: Selector, channel: Any) -> None:
    """Told to choose what the gates chose, they compute what the selector computes; noise included."""
    images = pictures().images
    link = [{"channel": channel, "generator": torch.Generator().manual_seed(1)} for _ in range(2)]
    with torch.no_grad():
        wanted = selector(images, 0.5, **link[0])
        counts = wanted.kept.sum(dim=2)
        found = run_controlled(
            selector, images, 0.5, counts=counts, rank=lambda gate, _: wanted.kept[gate].float(), **link[1]
        )
    assert 0 < wanted.kept.sum() < wanted.kept.numel()
    assert (found.kept == wanted.kept).all()
    torch.testing.assert_close(found.logits, wanted.logits)
    assert found.sent.tolist() == wanted.sent.tolist() and found.macs.tolist() == wanted.macs.tolist()


def test_controls_rank_what_is_left(selector: Selector) -> None:
    images = pictures().images
    counts = torch.tensor([[9], [5], [2]]).expand(-1, COUNT)
    settings: dict[str, Any] = {"images": COUNT, "patches": 16, "first": 0, "device": torch.device("cpu")}
    for name in CONTROLS:
        with torch.no_grad():
            found, other = (
                run_controlled(selector, images, 0.5, counts=counts, rank=ranked_by(name, seed=seed, **settings))
                for seed in (0, 1)
            )
        assert found.kept.sum(dim=2).tolist() == counts.tolist()
        assert not (found.kept[1:] & ~found.kept[:-1]).any()
        assert bool((found.kept == other.kept).all()) == (name == "norm+budget")
    with torch.no_grad():
        norms = selector.backbone.blocks[0](selector.backbone.embed(images))[:, 1:].norm(dim=-1)
    lowest = torch.where(found.kept[0], norms, torch.inf).amin(dim=1)
    assert (lowest >= torch.where(found.kept[0], -torch.inf, norms).amax(dim=1)).all()


def test_a_rerun_does_nothing_and_more_can_be_added(selector: Selector, tmp_path: Path) -> None:
    first = experiment(selector, images=pictures().take(slice(0, 6)))
    run(first, tmp_path / "a")
    batches = SelectionStore(tmp_path / "a").batches()
    before = rows_of(tmp_path / "a")
    run(first, tmp_path / "a")
    assert SelectionStore(tmp_path / "a").batches() == batches
    run(experiment(selector, baselines=["norm"]), tmp_path / "a")
    after = rows_of(tmp_path / "a")
    assert {key: after[key] for key in before} == before
    assert len(after) == 9 * COUNT + 6 * COUNT
    for key, row in after.items():
        if key[0] == "norm" and key[2] == "awgn":
            assert row["kept"] == after["gate", *key[1:]]["kept"]


def test_what_was_broken_off_goes_on(selector: Selector, tmp_path: Path, finished: Path) -> None:
    def stop(now: Any) -> None:
        if now.done > 5 * COUNT:
            raise KeyboardInterrupt

    wanted = experiment(selector, baselines=["norm"])
    with pytest.raises(KeyboardInterrupt):
        run(wanted, tmp_path / "a", progress=stop)
    whole = {key: row for key, row in rows_of(finished).items() if key[0] in ("gate", "norm")}
    assert 0 < len(rows_of(tmp_path / "a")) < len(whole)
    told: list[Any] = []
    run(wanted, tmp_path / "a", progress=told.append)
    assert rows_of(tmp_path / "a") == whole
    assert told[-1].done == told[-1].total == len(whole)


def test_other_weights_and_images_are_refused(selector: Selector, finished: Path) -> None:
    other = Selector(SmallViT(SHAPE, seed=4), Gating(split=2), seed=3).eval()
    with pytest.raises(UsageError, match="weights_sha256"):
        run(experiment(other), finished)
    images = pictures()
    images.images[0, 0, 0, 0] += 0.1
    with pytest.raises(UsageError, match="first_sha256"):
        run(experiment(selector, images=images), finished)


def test_models_for_one_budget(selector: Selector, tmp_path: Path) -> None:
    other = Selector(SmallViT(SHAPE, seed=5), Gating(split=2), seed=5).eval()
    run(experiment(selector, fixed=[FixedModel(name="fixed-6", selector=other, alpha=0.6)]), tmp_path / "a")
    rows = [row for row in rows_of(tmp_path / "a").values() if row["method"] == "fixed"]
    assert {(row["alpha"], row["model"]) for row in rows} == {(0.6, "fixed-6")}
    with torch.no_grad():
        wanted = other(pictures().images, 0.6).logits.argmax(dim=1).tolist()
    assert [row["prediction"] for row in rows if row["channel"] == "wire"] == wanted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baselines": ["nearest"]}, "unknown baseline 'nearest'"),
        ({"images": pictures().take(slice(0, 0))}, "no images to evaluate on"),
    ],
)
def test_refusals(selector: Selector, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        experiment(selector, **changes)


def test_labels_that_the_model_lacks_are_refused() -> None:
    few = Selector(SmallViT(ViTShape(image=16, patch=4, width=16, blocks=2, heads=2, classes=2)))
    with pytest.raises(UsageError, match="labels up to 2, the model 2 classes"):
        experiment(few)


def test_spots() -> None:
    spots = cross(alphas=[0.5, 0.1, 0.5], snrs=[0.0, -10.0], fadings=[5.0], erasures=[0.0, 0.1])
    assert len(spots) == 3 * 5
    assert [spot.alpha for spot in spots[:3]] == [0.1, 0.5, 1.0]
    assert [str(spot) for spot in spots[::3]] == [
        "alpha 0.1, wire", "alpha 0.1, awgn 0 dB", "alpha 0.1, awgn -10 dB", "alpha 0.1, rayleigh 5 dB",
        "alpha 0.1, erasure 0.1",
    ]  # fmt: skip
    for alpha in (-0.1, 1.01, math.nan):
        with pytest.raises(UsageError, match="expected a share of tokens from 0 to 1"):
            cross(alphas=[alpha])
    with pytest.raises(UsageError, match="SNR is nan"):
        cross(alphas=[0.1], snrs=[math.nan])
    with pytest.raises(UsageError, match=r"erasure probability is 1\.5"):
        cross(alphas=[0.1], erasures=[1.5])
    with pytest.raises(UsageError, match="expected a level for a channel"):
        Link(channel="awgn")
    assert Spot(alpha=0.1, link=Link()).link.made() is None


@pytest.mark.parametrize("text", ["", "a", "1,,2", "nan", "1,inf"])
def test_lists_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"--snr .* is no list of finite numbers; expected e\.g\. 0"):
        parse_floats("--snr", text, example="0")


# Numbers by hand: 4 patches, 2 gates, 4 images.

KEPT = {  # alpha: patches of every image, at both gates, as bits
    0.25: [("1000", "1000"), ("1100", "1000"), ("0001", "0000"), ("1000", "1000")],
    0.5: [("1100", "1100"), ("1110", "0110"), ("0011", "0011"), ("1100", "0000")],
    1.0: [("1111", "1111")] * 4,
}
RIGHT = {0.25: [1, 0, 0, 1], 0.5: [1, 1, 0, 1], 1.0: [1, 1, 1, 1]}
LOSS = [0.1, 0.9, 0.3, 0.2]


def by_hand(folder: Path) -> None:
    store = SelectionStore(folder)
    document = {
        "fingerprint": "x", "model": "hand", "problems": 4, "command": None,
        "shape": {"patches": 4, "image_values": 100, "macs": 1000, "channel_gate": 0, "symbols": 2, "blocks": 3},
        "decisive": {"model": {"gated": [1, 2]}},
    }  # fmt: skip
    with store.claimed(document):
        for alpha, images in KEPT.items():
            store.add("rows", f"gate {alpha}", [row_by_hand(alpha, n, bits) for n, bits in enumerate(images)])
        noisy = [
            row_by_hand(0.5, n, KEPT[0.5][n]) | {"channel": "awgn", "level": 0.0, "side_bits": 20.0} for n in range(4)
        ]
        store.add("rows", "noisy", noisy)
        wrong = [row_by_hand(0.5, n, KEPT[0.5][n]) | {"method": "norm", "right": n == 2} for n in range(4)]
        store.add("rows", "norm", wrong)


def row_by_hand(alpha: float, image: int, bits: tuple[str, str]) -> dict[str, Any]:
    masks = np.array([[int(bit) for bit in gate] for gate in bits])
    return {
        "method": "gate", "model": "", "alpha": alpha, "channel": "wire", "level": None, "image": image, "label": 0,
        "prediction": 0, "right": bool(RIGHT[alpha][image]), "loss": LOSS[image], "kept": masks.sum(axis=1).tolist(),
        "recall": masks[:, 0].astype(float).tolist(), "mask": np.packbits(masks.ravel()).tobytes(), "sent": 3,
        "rate": 0.06, "side_bits": 0.0, "macs": 250,
    }  # fmt: skip


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("hand")
    by_hand(folder)
    return summarise(folder)


def cell(result: dict[str, Any], method: str, alpha: float, channel: str = "wire") -> dict[str, Any]:
    wanted = (method, alpha, channel)
    (found,) = [one for one in result["cells"] if (one["method"], one["alpha"], one["channel"]) == wanted]
    return found


def test_levels_by_hand(result: dict[str, Any]) -> None:
    quarter = cell(result, "gate", 0.25)
    assert quarter["accuracy"]["value"] == 0.5
    assert quarter["accuracy"]["low"] == pytest.approx(0.150, abs=5e-4)  # Wilson's, of 2 in 4
    assert quarter["kept_by_gate"] == [5 / 16, 3 / 16]
    assert quarter["kept"] == 0.25
    assert quarter["macs_share"] == 0.25
    assert quarter["side_rate"] is None
    # The object is the first patch: behind gate 1 three of four images have it, with 5 of 16 patches.
    assert quarter["foreground"]["recall"][0]["value"] == 0.75
    assert quarter["foreground"]["over_kept"][0]["value"] == pytest.approx(0.75 / (5 / 16))
    noisy = cell(result, "gate", 0.5, "awgn")
    assert noisy["side_rate"] == pytest.approx(20 / 1.0 / 100)  # 0 dB: one bit a use
    assert noisy["foreground"] is None
    norm = cell(result, "norm", 0.5)
    assert norm["to_gate"]["value"] == pytest.approx((-1 - 1 + 1 - 1) / 4)
    assert quarter["to_gate"] is None
    assert result["images"] == 4


def test_calibration_by_hand(result: dict[str, Any]) -> None:
    half = (2 + 2 + 3 + 2 + 2 + 2 + 2 + 0) / 32
    assert [(one["alpha"], one["kept"]) for one in result["calibration"]["points"]] == [(0.25, 0.25), (0.5, half)]
    assert result["calibration"]["largest_gap"] == pytest.approx(0.5 - half)


def test_what_falls_when_the_budget_rises_is_counted(result: dict[str, Any]) -> None:
    first, second = result["monotone"]
    # At 1 the gates do not run, so there are 4 pairs, one an image.
    assert (first["block"], first["pairs"], first["falls"], first["swapped"]) == (1, 4, 0, 0.0)
    assert (second["block"], second["falls"], second["share"]) == (2, 1, 0.25)  # the last image
    assert second["swapped"] == pytest.approx(2 / 3)  # patch 0 of the second and of the last, of 3 kept


def test_difficulty_by_hand(result: dict[str, Any]) -> None:
    shares = [np.array(images_kept(alpha)).mean(axis=1) / 4 for alpha in (0.25, 0.5)]
    for point, share in zip(result["adaptivity"], shares, strict=True):
        wanted = scipy.stats.spearmanr(share, LOSS).statistic
        assert point["with_difficulty"]["value"] == pytest.approx(wanted)
        assert point["spread"] == pytest.approx(share.std())
        assert (point["least"], point["most"]) == (share.min(), share.max())


def images_kept(alpha: float) -> list[list[int]]:
    return [[gate.count("1") for gate in bits] for bits in KEPT[alpha]]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=30))
def test_rank_correlations_are_those_of_scipy(pairs: list[tuple[int, int]]) -> None:
    x, y = np.array(pairs, float).T
    found = correlation(x, y)
    if len(set(x)) < 2 or len(set(y)) < 2:
        assert found.value is None
        return
    assert found.value == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-9)


def test_the_interval_of_a_correlation_is_where_it_should_be() -> None:
    drawn = np.random.default_rng(0).normal(size=(400, 2))
    found = correlation(drawn[:, 0], drawn[:, 0] + drawn[:, 1])
    assert found.low is not None and found.high is not None and found.value is not None
    assert found.low < found.value < found.high
    # Of ranks, sd about (1 - r^2) / sqrt(n): four of them across.
    assert found.high - found.low == pytest.approx(4 * (1 - found.value**2) / 20, rel=0.4)


def test_speed(selector: Selector, tmp_path: Path) -> None:
    store = SelectionStore(tmp_path)
    measure_speed(store, selector, pictures(), alphas=[0.2], batches=(1, 8))
    rows = store.read("speed").to_pylist()
    assert len(rows) == 2 * 2 * PASSES
    assert {row["alpha"]: row["kept"] for row in rows}[1.0] == 1.0
    measure_speed(store, selector, pictures(), alphas=[0.2], batches=(1, 8))
    assert len(store.read("speed")) == len(rows)


def test_speed_by_hand(tmp_path: Path) -> None:
    by_hand(tmp_path)
    head = {"batch": 8, "images": 10, "kept": 1.0, "device": "cpu", "threads": 1}
    times = {0.25: (1.0, 0.5, 2.0), 1.0: (4.0, 4.0, 1.0)}
    rows = [head | {"alpha": a, "pass": n, "seconds": s} for a, some in times.items() for n, s in enumerate(some)]
    SelectionStore(tmp_path).add("speed", "cpu", rows)
    quarter, whole = summarise(tmp_path)["speed"]
    assert (quarter["per_second"], quarter["slowest"], quarter["fastest"]) == (10.0, 5.0, 20.0)
    assert (whole["per_second"], whole["to_whole"], quarter["to_whole"]) == (2.5, 1.0, 4.0)


def test_token_maps(selector: Selector) -> None:
    images = pictures(3).images
    maps = token_maps(selector, images, model="small", alphas=[1.0, 0.2], names=["x", "y", "z"])
    assert maps.alphas == (0.2, 1.0)
    with torch.no_grad():
        found = selector(images, 0.2)
    assert (maps.kept[0] == found.kept.transpose(0, 1).numpy()).all()
    assert maps.kept[1].all()
    np.testing.assert_allclose(maps.chances.sum(axis=2), 1, rtol=1e-5)
    np.testing.assert_allclose(maps.macs[0], found.macs.numpy() / backbone_macs(selector.costs))
    assert (maps.macs[1] == 1).all()
    assert maps.labels == (None, None, None) and maps.class_name(2) == "2"
    assert abs(maps.pixels / 255 - images.numpy()).max() <= 0.5 / 255 + 1e-7
    with pytest.raises(UsageError, match="0 images at 1 budgets"):
        token_maps(selector, images[:0], model="small", alphas=[0.1], names=[])
    with pytest.raises(UsageError, match="alpha is 2; expected a share"):
        token_maps(selector, images, model="small", alphas=[2.0], names=["x", "y", "z"])


# The example script.


@pytest.fixture(scope="module")
def controller() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "rate_controller.py"
    spec = importlib.util.spec_from_file_location("rate_controller", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_rate_controller_meets_its_target(controller: ModuleType) -> None:
    table = {0.0: {0.1: (0.5, 0.1), 0.9: (0.6, 0.9)}, 20.0: {0.1: (0.5, 0.1), 0.9: (0.9, 0.9)}}
    taken = controller.control(table, [2.0, 17.0] * 5000, target=0.4)
    assert np.mean([table[0.0][alpha][1] for alpha in taken]) == pytest.approx(0.4, rel=0.01)
    # What can be spent goes where it brings most: 0.4 accuracy a slot at 20 dB, 0.1 at 0 dB.
    dear = [np.mean([alpha == 0.9 for alpha in taken[start::2]]) for start in (0, 1)]
    assert dear[0] < 0.02 and dear[1] == pytest.approx(2 * (0.4 - 0.1) / 0.8, abs=0.02)
    assert set(controller.control(table, [20.0] * 10, target=2.0)) == {0.9}


def test_the_rate_controller_reads_results(controller: ModuleType, tmp_path: Path, result: dict[str, Any]) -> None:
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert controller.read_table(tmp_path / "result.json") == {0.0: {0.5: (0.75, pytest.approx(0.26))}}
    (tmp_path / "result.json").write_text(json.dumps(result | {"cells": []}))
    with pytest.raises(SystemExit, match="has no cells with noise"):
        controller.read_table(tmp_path / "result.json")
    with pytest.raises(SystemExit, match=r"there is no .*nowhere\.json"):
        controller.read_table(tmp_path / "nowhere.json")
