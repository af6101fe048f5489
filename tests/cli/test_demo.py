"""The demo, with as little of everything as there can be: its files, its document, its tables, and what ends it."""

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from itertools import chain
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy.stats import binomtest

import sinklens as sl
from sinklens.cli import demo, demo_folder, demo_masking, demo_parts, demo_tables, demo_workers, main
from sinklens.errors import SinklensError, UsageError
from sinklens.interventions.random_keys import RandomKeys
from sinklens.sinks.intervals import wilson
from sinklens.sinks.resample import Interval
from sinklens.tasks.item import Item
from sinklens.tasks.sandbox import SandboxError
from sinklens.training import measure

Run = Callable[..., Any]
NAMES = ["tiny-llama", "tiny-llada", "tiny-dream"]
TINY = demo.Pace(seconds=0.0, traced=1, length=8, steps=4, masked_steps=2, batch=1, workers=1, tasks=("word_problems",))
MASKS = len(demo_masking.MASKS)
CELLS = len(NAMES) * MASKS


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, str]]:
    """The folder of a finished demo, what it printed, and what it said meanwhile."""
    folder = tmp_path_factory.mktemp("demo")
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(demo, "FULL", TINY)
        patch.setenv("COLUMNS", "80")
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
            main(["demo"])
    assert not end.value.code, err.getvalue()
    yield folder / "runs" / "demo", out.getvalue(), err.getvalue()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> demo.Pace:
    monkeypatch.setattr(demo, "QUICK", TINY)
    return TINY


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "masking.jsonl").read_text("utf-8").splitlines()]


def test_the_files_are_there_and_named(made: tuple[Path, str, str]) -> None:
    folder, out, _ = made
    for name in NAMES:
        trace = sl.open_trace(folder / "traces" / name)
        assert trace.complete and len(trace.samples) == TINY.traced
    for figure in (1, 3, 5, 7, 10):
        assert (folder / "figures" / f"figure_{figure}.png").stat().st_size > 1000
    entries = json.loads((folder / "sinks.json").read_text("utf-8"))["traces"]
    assert [entry["name"] for entry in entries] == NAMES
    document = json.loads((folder / "demo.json").read_text("utf-8"))
    assert document["complete"] and not document["interrupted"]
    assert [row["model"] for row in document["answers"]] == NAMES
    assert [(row["model"], row["causal"]) for row in document["summary"]] == [
        (name, name == NAMES[0]) for name in NAMES
    ]
    named = [row["file"] for row in document["files"]]
    assert named[:2] == ["runs/demo/explorer.html", "runs/demo/figures/figure_1.png"]
    assert named[-1] == "runs/demo/demo.json"
    page = (folder / "explorer.html").read_text("utf-8")
    assert all(f'"name":"{name}"' in page.replace(": ", ":") for name in ("tiny-llama", "tiny-dream"))
    ending = out[out.index("Written in") :]
    assert [line for line in named if line not in ending] == []
    assert ending.count("next: ") == 2 and "sinks runs/demo/traces/tiny-llada --parts all" in ending


def test_what_is_printed_follows_the_order_and_fits(made: tuple[Path, str, str]) -> None:
    _, out, err = made
    titles = ["Word problem", "Sinks while they answered 1 word problem\n", "Figures", "Right answers", "Written in"]
    places = [out.index(title) for title in titles]
    assert places == sorted(places)
    shown = out[: out.index("next: ")].splitlines()
    assert max(map(len, shown)) <= demo_tables.WIDTH
    said = " ".join(out.split())
    assert "Question: " in said and "1 problem, up to 8 tokens in 2 denoising steps: a glimpse" in said
    assert "The same on 300 problems" in said and "[45, 56]" in said  # what is published, in zoo/masking.json
    assert "A model that fails unmasked says nothing" in said
    header = "model unmasked sinks 1 random 1 sinks 5 random 5"
    assert header in [" ".join(line.split()) for line in shown]
    assert "Ctrl-C ends it with what is finished" in err


def test_every_cell_has_the_same_problems_and_the_dose_tells_masks_apart(made: tuple[Path, str, str]) -> None:
    folder, _, _ = made
    rows = rows_of(folder)
    assert len(rows) == CELLS and {row["problem"] for row in rows} == {0}
    cells = json.loads((folder / "demo.json").read_text("utf-8"))["masking"]["cells"]
    assert len(cells) == CELLS and {cell["problems"] for cell in cells} == {1}
    dose = {(cell["model"], cell["keys"], cell["top"]): cell["dose"] for cell in cells}
    for name in NAMES:
        assert dose[name, "none", 0] is None
        for top in (1, 5):
            assert dose[name, "sinks", top] > dose[name, "random", top] > 0


def test_a_second_demo_replaces_the_first_and_prints_one_document(
    sinklens: Run, tiny: demo.Pace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_parts, "DRAWN", ("10",))
    monkeypatch.setattr(demo, "MODELS", ("tiny-llada",))
    folder = tmp_path / "d"
    demo_folder.claim_folder(folder, traces=(), marker={})
    stale = [folder / "traces" / "tiny-llada" / "manifest.json", folder / "figures" / "figure_99.png"]
    mine = [folder / "notes.txt", folder / "figures" / "mine.png", folder / "traces" / "mine" / "a"]
    for path in (*stale, *mine):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    (folder / "masking.jsonl").write_text('{"old": true}\n')
    done = sinklens("demo", "--quick", "--to", folder, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document == json.loads((folder / "demo.json").read_text("utf-8"))
    assert document["quick"] and document["masking"]["problems"] == 1 and len(rows_of(folder)) == MASKS
    assert all(path.exists() for path in mine) and not stale[1].exists()
    overview = json.loads((folder / "sinks.json").read_text("utf-8"))["traces"][0]["overview"]
    heads = sum(overview["stored_steps"]) * 8 * 4
    assert document["summary"][0]["sinks_per_head_and_step"] == pytest.approx(overview["sinks"] / heads)


@pytest.mark.parametrize("content", [None, "no json", "[]", '{"program": "another"}'])
def test_a_folder_that_is_no_demos_is_refused_and_left_alone(
    sinklens: Run, tiny: demo.Pace, tmp_path: Path, content: str | None
) -> None:
    folder = tmp_path / "thesis"
    (folder / "figures").mkdir(parents=True)
    (folder / "figures" / "figure_1.png").touch()
    if content is not None:
        (folder / "demo.json").write_text(content)
    before = sorted(folder.rglob("*"))
    done = sinklens("demo", "--quick", "--to", folder)
    assert done.returncode == 2 and not done.stdout
    assert "is not empty and holds no demo (" in done.stderr and "give a new or an empty folder" in done.stderr
    assert sorted(folder.rglob("*")) == before


def test_misuse_is_refused_in_words(sinklens: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = sinklens("demo", "--to", "file")
    assert done.returncode == 2 and "--to file is a file; give a folder" in done.stderr
    assert sinklens("demo", "--fast").returncode == 2
    assert sinklens("demo", "somewhere").returncode == 2
    assert not (tmp_path / "runs").exists()


def after(calls: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; at its call of that number, Ctrl-C."""
    count = iter(range(calls))

    def called(*arguments: Any, **named: Any) -> Any:
        if next(count, None) is None:
            signal.raise_signal(signal.SIGINT)
        return function(*arguments, **named)

    return called


def written(items: Sequence[Item]) -> list[str]:
    """Every other problem is solved."""
    return [item.answer if item.index % 2 == 0 else "" for item in items]


def test_an_interrupt_keeps_the_rounds_that_are_finished(
    sinklens: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "QUICK", replace(TINY, seconds=1e6, tasks=()))
    monkeypatch.setattr(demo, "MODELS", ("tiny-llada",))
    monkeypatch.setattr(demo_parts, "trace_models", lambda *_, **__: [])
    monkeypatch.setattr(demo_parts, "summarise", lambda *_: [])
    monkeypatch.setattr(demo_parts, "draw", lambda *_: [])
    monkeypatch.setattr(demo_parts, "make_page", lambda *_: None)
    monkeypatch.setattr(demo_tables, "print_summary", lambda *_: None)
    solve = after(2 * MASKS + 4, lambda model, items, sampler: written(items))
    monkeypatch.setattr(demo_workers, "answers", solve)
    done = sinklens("demo", "--quick", "--to", "d")
    assert done.returncode == 130, done.stderr
    assert done.stderr.count("interrupted") == 1 and "interrupted: what is finished is in d" in done.stderr
    assert "2 problems, the same in every cell, up to 8 tokens" in done.stdout and "seconds, interrupted" in done.stdout
    assert done.stdout.count("50 % [9, 91]") == MASKS and "d/masking.jsonl" in done.stdout
    assert len(rows_of(tmp_path / "d")) == 2 * MASKS
    document = json.loads((tmp_path / "d" / "demo.json").read_text("utf-8"))
    assert document["interrupted"] and not document["complete"] and document["masking"]["problems"] == 2


def test_an_interrupt_while_the_first_model_answers(
    sinklens: Run, tiny: demo.Pace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo_parts, "answering", after(1, measure.answering))
    done = sinklens("demo", "--quick", "--to", "d", "--json")
    assert done.returncode == 130
    document = json.loads(done.stdout)
    assert document["interrupted"] and len(document["answers"]) == 1 and document["masking"] is None
    assert [row["file"] for row in document["files"]] == ["d/demo.json"] and len(document["next"]) == 1
    again = sinklens("demo", "--quick", "--to", "d", "--help")
    assert again.returncode == 0 and demo_folder._is_demo(tmp_path / "d")


def test_rounds_go_on_while_another_fits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now, lengths = [0.0], iter([10.0, 30.0, 20.0, 1.0])
    jobs: list[demo_workers.Job] = []

    def answer(asked: Sequence[demo_workers.Job]) -> Iterator[demo_workers.Rows]:
        jobs.extend(asked)
        now[0] += next(lengths)
        return map(demo_workers.answer_job, asked)

    monkeypatch.setattr(demo_workers, "answers", lambda model, items, sampler: written(items))
    monkeypatch.setattr(demo_masking, "MASKS", (demo_workers.Mask(keys="random", top=2),))
    told: list[str] = []
    effort = demo_workers.Effort(length=8, steps=2, batch=3)
    rounds = demo_masking.mask_rounds(
        demo_masking.Tally(models=("tiny-llada",), effort=effort),
        tmp_path / "m.jsonl",
        answer=answer,
        deadline=79.0,
        tell=lambda doing, _: told.append(doing),
        clock=lambda: now[0],
    )
    found = [(done["problems"], done["cells"][0]["right"]) for done in rounds]
    assert found == [(3, 2), (6, 3), (9, 5)]  # at 60 of 79 seconds another 20 do not fit
    assert [job.number for job in jobs] == [0, 1, 2] and told == ["tiny-llada, 2 random"] * 3
    rows = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text("utf-8").splitlines()]
    assert [row["problem"] for row in rows] == list(range(9))
    assert [row["right"] for row in rows] == [number % 2 == 0 for number in range(9)]


def test_every_round_draws_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []

    def draw(*, top: int, seed: int) -> RandomKeys:
        seeds.append(seed)
        return RandomKeys(top=top, seed=seed)

    monkeypatch.setattr(demo_workers, "RandomKeys", draw)
    monkeypatch.setattr(demo_workers, "answers", lambda model, items, sampler: written(items))
    mask, effort = demo_workers.Mask(keys="random", top=1), demo_workers.Effort(length=8, steps=2, batch=1)
    for number in (0, 4):
        job = demo_workers.Job(model="tiny-llada", mask=mask, task="word_problems", number=number, effort=effort)
        (row,) = demo_workers.answer_job(job)
        assert row["problem"] == number
    assert seeds == [0, 4]


def test_other_processes_answer_the_same_and_are_gone_when_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    effort = demo_workers.Effort(length=8, steps=2, batch=2)
    jobs = [
        demo_workers.Job(model="tiny-llada", mask=mask, task="word_problems", number=1, effort=effort)
        for mask in demo_masking.MASKS[1:3]
    ]
    here = [demo_workers.answer_job(job) for job in jobs]
    with pytest.raises(KeyboardInterrupt), demo_workers.workers(2) as answer:
        with monkeypatch.context() as patch, pytest.raises(SinklensError, match=r"no answer within 0 seconds \(tiny-"):
            patch.setattr(demo_workers, "PATIENCE", 0.01)
            next(answer(jobs[:1]))
        there = list(answer(jobs))
        for row, other in zip(chain(*there), chain(*here), strict=True):
            assert row.pop("dose") == pytest.approx(other.pop("dose"), rel=1e-4)
            assert row == other
        raise KeyboardInterrupt
    assert not active_children()


def test_one_thread_computes_and_the_number_is_put_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ZeroDivisionError), demo_workers.one_thread():
            assert torch.get_num_threads() == 1
            raise ZeroDivisionError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_where_there_is_no_sandbox_programs_are_shown_and_not_graded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> list[bool]:
        raise SandboxError("no sandbox here")

    monkeypatch.setattr(demo_parts, "graded", refuse)
    (item,) = demo_workers.problems("small_programs", 1)
    (row,) = demo_parts.answer({"tiny-llama": demo_workers.loaded("tiny-llama")}, item, length=4, steps=4)
    assert row["right"] is None and row["not_graded"] == "no sandbox here"
    text = StringIO()
    console = Console(file=text, width=80)
    demo_tables.print_problem(console, item)
    demo_tables.print_answer(console, row | {"text": "a\x1b[2Jb"})
    assert "Small program, not seen in training" in text.getvalue() and "not graded" in text.getvalue()
    assert "\x1b" not in text.getvalue() and "a·[2Jb" in text.getvalue()


ROW = {
    "model": "tiny-llada", "causal": False, "prompts": 6, "sinks_per_head_and_step": 1.234,
    "tracks": 12, "moving": 0.5, "moving_null": 0.125, "median_lifetime": 4.0, "drift": -0.25,
    "drifting_tracks": 7, "steps": 64.0,
    "top_tokens": [{"token": "␣the", "class": "word", "share": 0.4}, {"token": "\\n", "class": "space", "share": 0.3}],
}  # fmt: skip


def summary_of(*rows: dict[str, Any]) -> list[str]:
    text = StringIO()
    demo_tables.print_summary(Console(file=text, width=100), rows)
    return text.getvalue().splitlines()


def test_the_summary_says_what_was_found() -> None:
    quiet = ROW | {"model": "tiny-llama", "causal": True, "tracks": 0, "moving": None, "moving_null": None}
    quiet |= {"median_lifetime": None, "drift": None, "top_tokens": [], "sinks_per_head_and_step": 0.0}
    lines = summary_of(ROW, ROW | {"median_lifetime": None}, quiet)
    assert lines[1] == "Sinks while they answered 6 word problems"
    assert " ".join(lines[3].split()) == "tiny-llada 1.23 50.0 % 12.5 % 4 -0.25 (7) ␣the 40%, \\n 30%"
    assert " > 64 " in lines[4] and lines[5].split() == ["tiny-llama", "0.00"]
    notes = " ".join(lines[6:])
    assert "tiny-llama writes from left to right" in notes and "tiny-llama has no sink here" in notes
    assert "tiny-llada writes" not in notes


@pytest.mark.parametrize(("width", "lines"), [(80, 7), (100, 4)])
def test_no_share_and_no_name_is_cut(width: int, lines: int) -> None:
    masks = [("none", 0), ("sinks", 1), ("random", 1), ("sinks", 5), ("random", 5)]
    whole = {"accuracy": 1.0, "low": 0.89, "high": 1.0}
    cells = [{"model": name, "keys": keys, "top": top, **whole} for name in demo.MODELS for keys, top in masks]
    text = StringIO()
    Console(file=text, width=width).print(demo_tables.masking_table({"cells": cells}, width=width))
    shown = text.getvalue().splitlines()
    assert len(shown) == lines
    assert "…" not in text.getvalue()
    assert all(text.getvalue().count(name) == 1 for name in demo.MODELS)
    assert text.getvalue().count("[89, 100]") == len(cells)


def test_the_table_fills_while_it_is_watched() -> None:
    tally = demo_masking.Tally(models=("a",), effort=demo_workers.Effort(length=8, steps=2, batch=1))
    text = StringIO()
    console = Console(file=text, width=100, force_terminal=True, color_system=None)
    view = demo_tables.MaskingView(console, seconds=100.0)
    view.show("a, unmasked", tally.document(), elapsed=3.0)
    tally.rows += [{"model": "a", "keys": "none", "top": 0, "dose": None, "right": True}]
    view.show("a, 1 sinks", tally.document(), elapsed=7.9)
    view.close()
    seen = text.getvalue()
    assert "masking: 0 problems done, now a, unmasked; second 3/100" in seen
    assert "masking: 1 problem done, now a, 1 sinks; second 7/100" in seen and "100 % [21, 100]" in seen


@given(data=st.data(), total=st.integers(1, 500), level=st.floats(0.5, 0.999))
def test_wilson_is_the_textbooks(data: st.DataObject, total: int, level: float) -> None:
    right = data.draw(st.integers(0, total))
    found = wilson(right, total, level=level)
    expected = binomtest(right, total).proportion_ci(confidence_level=level, method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert found.value == right / total and found.n == total
    assert found.low is not None and found.high is not None
    assert found.low <= found.value <= found.high


def test_wilson_without_trials_and_refusals() -> None:
    assert wilson(0, 0) == Interval(value=None, low=None, high=None, n=0)
    assert wilson(8, 8).high == 1.0 and wilson(0, 8).low == 0.0
    with pytest.raises(UsageError, match="right is 9 and total 8; expected a count from 0 to total"):
        wilson(9, 8)
    with pytest.raises(UsageError, match=r"level is 1\.0; expected a number between 0 and 1"):
        wilson(1, 8, level=1.0)
