"""Figures as files: all there, whole, readable, the same every time, and worded where they cannot be drawn."""

import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread
from matplotlib.text import Text

from report.three_models import MappedTrace, Size, model, thin
from sinklens.errors import SinklensError, UsageError
from sinklens.report import scene
from sinklens.report.figures import IDS, draw_figures
from sinklens.report.scene import Drawn
from sinklens.sinks.arrays import MemoryTrace

PICTURES = tuple(id for id in IDS if id != "table2")
SHARES = "attention received"
AXES = {
    "1": ("token index", "denoising step", "generated token", "(fair shares; 1 = uniform)", "end of the prompt"),
    "3": ("attention received (fair shares; 1 = uniform)", "count (tokens x steps x"),
    "4": ("attended token (index)", "query (token index)", "attention (share of a query's attention)"),
    "5": ("head", "layer (deeper downwards)", "score of the main sink"),
    "6a": ("token index", SHARES, "unmasked queries", "masked queries", "token still masked"),
    "6b": ("token index", SHARES, "denoising step"),
    "7": ("denoising step or generated token", "position of the main sink", "hollow: on a token still masked"),
    "8": ("attended token (index)", "query (token index)"),
    "9": ("attention received (fair shares; 1 = uniform)", "count (tokens x steps x"),
    "10": ("threshold epsilon (fair shares", "share of tokens that", "are not sinks"),
}


def test_every_figure_is_drawn_in_order(drawn: dict[str, Drawn], folder: Path) -> None:
    assert tuple(drawn) == IDS
    for id in PICTURES:
        assert drawn[id].files == tuple(folder / f"figure_{id}.{suffix}" for suffix in ("png", "svg", "csv"))
    assert drawn["table2"].files == (folder / "table_2.csv", folder / "table_2.tex")
    named = {path.name for one in drawn.values() for path in one.files}
    assert {path.name for path in folder.iterdir()} == named  # no temporary file is left
    assert all(one.title for one in drawn.values())


@pytest.mark.parametrize("id", PICTURES)
def test_pictures_open_at_the_width_of_a_column_or_a_page(id: str, drawn: dict[str, Drawn]) -> None:
    picture = imread(drawn[id].files[0])
    assert picture.shape[1] == (660 if id in {"3", "7", "10"} else 1380)  # 200 dots an inch
    assert picture[..., :3].std() > 0.02
    for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]):
        assert (edge[..., :3] > 0.8).all()  # nothing dark touches the border


@pytest.mark.parametrize("id", PICTURES)
def test_drawings_are_xml_and_name_their_axes(id: str, drawn: dict[str, Drawn]) -> None:
    text = drawn[id].files[1].read_text("utf-8")
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert not [title for title in AXES[id] if f"<!-- {title}" not in text]
    assert "<dc:date>" not in text
    assert "<!-- llada" in text or id == "8"


@pytest.fixture
def kept_figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The figures themselves, beside their files."""
    figures: dict[str, Any] = {}
    save = scene.save

    def keep(figure: Any, to: Path, *, name: str) -> list[Path]:
        figures[name.removeprefix("figure_")] = figure
        return save(figure, to, name=name)

    monkeypatch.setattr(scene, "save", keep)
    return figures


def check_texts(figures: dict[str, Any]) -> None:
    """All text is at least 7 points high, inside the picture, and no two pieces of it overlap."""
    for id, figure in figures.items():
        figure.canvas.draw()  # places all text again, at the resolution of the screen
        whole = figure.bbox
        hidden = _not_drawn(figure)
        texts = [one for one in figure.findobj(Text) if one.get_visible() and one.get_text().strip()]
        boxes: list[tuple[Any, Any]] = []
        for one in texts:
            if one in hidden:
                continue
            box = one.get_window_extent()
            assert one.get_fontsize() >= 7, (id, one)
            inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= whole.x1 + 1 and box.y1 <= whole.y1 + 1
            assert inside, (id, one.get_text(), box, whole)
            boxes.append((one, box))
        for index, (one, box) in enumerate(boxes):
            for other, second in boxes[:index]:
                wide = min(box.x1, second.x1) - max(box.x0, second.x0)
                high = min(box.y1, second.y1) - max(box.y0, second.y0)
                assert wide <= 1 or high <= 1, (id, one.get_text(), other.get_text())


def _not_drawn(figure: Any) -> set[Any]:
    """Labels of ticks beyond the limits of their axis, and all labels of hidden axes: kept by matplotlib, not drawn."""
    hidden: set[Any] = set()
    for axes in figure.axes:
        for axis, (low, high) in ((axes.xaxis, sorted(axes.get_xlim())), (axes.yaxis, sorted(axes.get_ylim()))):
            for tick in (*axis.majorTicks, *axis.minorTicks):
                if not (axes.axison and low <= tick.get_loc() <= high):
                    hidden |= {tick.label1, tick.label2}
            if not axes.axison:
                hidden.add(axis.label)
    return hidden


def test_text_is_legible(traces: list[MappedTrace], tmp_path: Path, kept_figures: dict[str, Any]) -> None:
    draw_figures(traces, tmp_path, only=PICTURES)
    assert set(kept_figures) == set(PICTURES)
    check_texts(kept_figures)


def test_text_of_long_names_is_legible(traces: list[MappedTrace], tmp_path: Path, kept_figures: dict[str, Any]) -> None:
    long = [replace(one, name=f"organisation-{one.name}/a-model-with-a-name-模型-8B-Instruct") for one in traces]
    draw_figures([*long, *long[:2]], tmp_path, only=PICTURES)
    check_texts(kept_figures)


def test_text_of_one_model_is_legible(traces: list[MappedTrace], tmp_path: Path, kept_figures: dict[str, Any]) -> None:
    draw_figures(traces[:1], tmp_path, only=PICTURES)
    check_texts(kept_figures)
    assert {round(one.get_figwidth(), 1) for id, one in kept_figures.items() if id != "4"} == {3.3}


def test_the_same_bytes_whatever_the_user_has_set(
    traces: list[MappedTrace], drawn: dict[str, Drawn], folder: Path, tmp_path: Path
) -> None:
    with matplotlib.rc_context({"font.size": 20, "image.cmap": "jet", "axes.grid": True}):
        mine = dict(matplotlib.rcParams)
        draw_figures(traces, tmp_path)
        assert dict(matplotlib.rcParams) == mine
    for path in sorted(folder.iterdir()):
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name


@pytest.mark.usefixtures("drawn")
def test_two_threads_draw_at_once(traces: list[MappedTrace], folder: Path, tmp_path: Path) -> None:
    done = []

    def draw(name: str) -> None:
        draw_figures(traces, tmp_path / name, only=["5", "10"])
        done.append(name)

    threads = [threading.Thread(target=draw, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == ["a", "b"]
    for name in "ab":
        for path in (tmp_path / name).iterdir():
            assert path.read_bytes() == (folder / path.name).read_bytes()


def test_neither_torch_nor_pyplot_is_loaded() -> None:
    code = "import sys, sinklens.report.figures as f; assert 'matplotlib' not in sys.modules; print(f.IDS)"
    code += "; from sinklens.report.style import styled, new_figure"
    code += "\nwith styled(): new_figure(width=1, height=1)"
    code += "\nassert not {'torch', 'matplotlib.pyplot'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


class Counted:
    """A trace that counts what is read of it."""

    def __init__(self, trace: MappedTrace) -> None:
        self._trace = trace
        self.reads: Counter[tuple[int, int, bool]] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trace, name)

    def layer(self, sample: int, layer: int, *, groups: bool = False, norms: bool = False) -> Any:
        self.reads[sample, layer, groups] += 1
        assert not norms
        return self._trace.layer(sample, layer)


def test_each_layer_is_read_once(traces: list[MappedTrace], tmp_path: Path) -> None:
    counted: Any = Counted(traces[0])
    calls: list[tuple[int, int]] = []
    draw_figures([counted], tmp_path, progress=lambda done, total: calls.append((done, total)))
    every = {(sample, layer, sample == 0): 1 for sample in (0, 1) for layer in range(3)}  # groups where they are shown
    assert counted.reads == every
    assert calls == [(done, 6) for done in range(1, 7)]


def test_only_what_is_shown_is_read(traces: list[MappedTrace], tmp_path: Path) -> None:
    counted: Any = Counted(traces[0])
    (one,) = draw_figures([counted], tmp_path, only="7", layer=1, sample=1)
    assert counted.reads == {(1, 1, False): 1}
    assert one.note is not None
    assert "layer 1, head" in one.note


def test_only_keeps_the_order(traces: list[MappedTrace], tmp_path: Path) -> None:
    assert [one.id for one in draw_figures(traces, tmp_path, only=["10", "3", "10"])] == ["3", "10"]


def test_unknown_figures_are_refused(traces: list[MappedTrace], tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"unknown figure '2'; expected one of '1', '3', '4', '5', '6a', '6b', '7', '8'"
    ):
        draw_figures(traces, tmp_path, only=["1", "2"])
    with pytest.raises(UsageError, match="no figure was asked for; choose from 1, 3, 4"):
        draw_figures(traces, tmp_path, only=[])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"sample": 7}, "the trace of llada has no sample 7; it has 0 to 1"),
        ({"layer": 3}, "the trace of llada has no layer 3; it has 0 to 2"),
        ({"head": -1}, "the trace of llada has no head -1; it has 0 to 3"),
        ({"epsilon": 0.0}, "epsilon is 0.0; expected a finite number above 0"),
        ({"epsilon": float("nan")}, "epsilon is nan; expected a finite number above 0"),
        ({"epsilon": 99.0, "only": "table2"}, "epsilon 99 cannot be exceeded"),
    ],
)
def test_what_is_not_there_is_refused(
    asked: dict[str, Any], message: str, traces: list[MappedTrace], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        draw_figures(traces, tmp_path, **asked)


class Unfinished(MemoryTrace):
    """What a trace on disk is until its first sample is written."""

    @property
    def samples(self) -> list[int]:
        return []


def test_no_trace_and_no_sample_are_refused(traces: list[MappedTrace], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no traces; give at least one"):
        draw_figures([], tmp_path)
    with pytest.raises(UsageError, match="the trace of new holds no finished sample; record one first"):
        draw_figures([Unfinished(contents=traces[0].contents, texts=traces[0].texts, name="new")], tmp_path)


def test_a_folder_that_cannot_be_written(traces: list[MappedTrace], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinklensError, match=r"cannot write .*figure_5.png \(.*\); choose another folder"):
        draw_figures(traces, tmp_path / "file", only="5")


def test_traces_of_the_same_name_are_told_apart(traces: list[MappedTrace], tmp_path: Path) -> None:
    (one,) = draw_figures([traces[0]] * 3, tmp_path, only="1")
    assert one.note is not None
    assert [part.split(":")[0] for part in one.note.split("; ")] == ["llada", "llada (2)", "llada (3)"]


def notes(traces: list[MappedTrace], to: Path, **asked: Any) -> dict[str, str | None]:
    return {one.id: one.note for one in draw_figures(traces, to, **asked) if not one.files}


def test_without_maps_the_option_is_named(traces: list[MappedTrace], tmp_path: Path) -> None:
    plain = [replace(one, stored={}) for one in traces[:2]]
    said = notes(plain, tmp_path, only=["4", "8"])
    assert said["4"] == "llada: no maps are stored; record them with `sinklens trace ... --maps 2.2@1,2.2@2`"
    assert said["8"] is not None
    assert said["8"].startswith("dream: no maps are stored; record them with `sinklens trace ... --maps 2.")
    bare: Any = MemoryTrace(contents=traces[0].contents, texts=traces[0].texts, name="arrays")
    assert "no maps are stored" in str(notes([bare], tmp_path, only=["4"])["4"])


def test_maps_of_another_head_than_asked_for(traces: list[MappedTrace], tmp_path: Path) -> None:
    said = notes(traces[:1], tmp_path, only=["4"], layer=1, head=1, step=3)
    assert said["4"] == (
        "llada: no map of what was asked for is stored; record them with `sinklens trace ... --maps 1.1@3,1.1@4`"
    )


def test_figure_8_needs_a_second_trace(traces: list[MappedTrace], tmp_path: Path) -> None:
    assert "figure 8 shows the traces after the first" in str(notes(traces[:1], tmp_path, only="8")["8"])


def test_what_an_autoregressive_trace_has_not(traces: list[MappedTrace], tmp_path: Path) -> None:
    said = notes(traces[2:], tmp_path)
    assert said == {
        "6a": "llama is autoregressive: it has no masked queries",
        "6b": "llama: no sink lives for one step only (epsilon 3)",
        "8": "one trace was given: figure 4 shows it, figure 8 shows the traces after the first",
    }


def test_what_a_trace_of_detail_sinks_has_not(traces: list[MappedTrace], tmp_path: Path) -> None:
    thinned = thin(traces[0])
    drawn = {one.id: one for one in draw_figures([thinned], tmp_path)}
    assert {id for id, one in drawn.items() if not one.files} == {"3", "4", "6a", "8", "9"}
    assert "a histogram needs every token; record one with `sinklens trace ... --detail full`" in str(drawn["3"].note)
    assert "drawn from epsilon 1 on" in str(drawn["10"].note)
    assert "the rest stands at its mean" in str(drawn["1"].note)
    assert "does not tell masked from unmasked queries" in str(drawn["6a"].note)
    (low,) = draw_figures([thinned], tmp_path, only="6b", epsilon=1.5)
    assert "tracks need epsilon 2 or more" in str(low.note)
    assert not low.files


def test_a_thinned_trace_without_sinks(traces: list[MappedTrace], tmp_path: Path) -> None:
    thinned = thin(traces[0])
    none = {
        place: replace(layer, received=layer.expected * np.ones_like(layer.received), kept=np.zeros_like(layer.kept))
        for place, layer in thinned.contents.items()
    }
    (one,) = draw_figures([replace(thinned, contents=none)], tmp_path, only="5")
    assert not one.files
    assert "llada is left out: its trace has detail 'sinks', and no token is one fair share" in str(one.note)
    some = {**none, (0, 0): thinned.contents[0, 0], (1, 0): thinned.contents[1, 0]}
    (one,) = draw_figures([replace(thinned, contents=some)], tmp_path, only="5")
    assert one.files
    assert "8 heads without any are grey" in str(one.note)


def test_a_thinned_trace_beside_a_full_one(traces: list[MappedTrace], tmp_path: Path) -> None:
    (one,) = draw_figures([traces[0], thin(traces[1])], tmp_path, only="3")
    assert one.files
    assert str(one.note).startswith("dream is left out: its trace has detail 'sinks'")


def test_a_run_without_sinks(tmp_path: Path) -> None:
    flat = model("llada", Size(samples=1, layers=1, heads=1))
    layer = flat.contents[0, 0]
    even = {(0, 0): replace(layer, received=layer.expected.copy(), groups={})}
    said = notes([replace(flat, contents=even)], tmp_path)
    assert said["table2"] == "llada has no sink at epsilon 3"
    assert "no sink lives for one step only" in str(said["6b"])
    (seven,) = draw_figures([replace(flat, contents=even)], tmp_path, only="7")
    assert "no step with a sink there" in str(seven.note)


def test_every_fourth_step(tmp_path: Path) -> None:
    drawn = draw_figures([model("llada", every=4), model("llama", every=4)], tmp_path)
    assert {one.id for one in drawn if not one.files} <= {"4", "6b", "8"}


def test_one_step_one_layer_one_head(tmp_path: Path) -> None:
    whole = model("llada", Size(samples=1, layers=1, heads=1))
    layer = whole.contents[0, 0]
    first = replace(
        layer, steps=layer.steps[:1], received=layer.received[:1], expected=layer.expected[:1],
        viewers=layer.viewers[:1], groups={},
    )  # fmt: skip
    drawn = draw_figures([replace(whole, contents={(0, 0): first})], tmp_path)
    assert {one.id for one in drawn if one.files} == {"1", "3", "5", "7", "9", "10", "table2"}
    assert np.isfinite(imread(tmp_path / "figure_1.png")).all()


@pytest.mark.parametrize("kind", ["llada", "llama"])
def test_a_run_too_short_for_sinks(kind: str, tmp_path: Path) -> None:
    """No token is seen by 8 queries: nothing to draw in most figures, and nothing breaks."""
    short = model(kind, Size(prompt=2, length=4, block=2, layers=2, heads=2, samples=1))
    drawn = {one.id: one for one in draw_figures([short], tmp_path)}
    assert {id for id, one in drawn.items() if not one.files} == {"3", "4", "5", "6a", "6b", "8", "9", "table2"}
    assert drawn["table2"].note == f"{kind} has no sink at epsilon 3"
    for id in ("3", "5", "9"):
        assert drawn[id].note == f"{kind} is left out: no token of it is seen by 8 queries or more"
    assert "no step with a sink there" in str(drawn["7"].note)
    (beside,) = draw_figures([short, model("dream")], tmp_path, only="table2")
    assert beside.files
    assert beside.note == f"{kind} has no sink at epsilon 3"
