"""trace, sinks and figures as a shell runs them: end to end, interrupted, killed, refused."""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sinklens as sl

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Running = Callable[..., "subprocess.Popen[str]"]
WORDS = ("three", "four", "five", "six", "seven", "eight")
SHORT = ("--length", "16", "--steps", "8", "--block", "8")


@pytest.fixture
def recorded(sinklens: Run, llada: Path, tmp_path: Path) -> Path:
    """A trace of two prompts with two maps."""
    ids = ("--prompt-ids", "17,42,8,99", "--prompt-ids", "5,6,7")
    done = sinklens("trace", llada, *ids, *SHORT, "--maps", "1.2@3-4", "--to", "t", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    return tmp_path / "t"


def contents(folder: Path) -> dict[str, Any]:
    """Every table of every sample but the timing."""
    trace = sl.open_trace(folder)
    names = ("attention", "uniform", "steps", "tokens", "sample", "norms", "hidden")
    tables: dict[str, pa.Table] = {name: trace.table(name).sort_by([("sample", "ascending")]) for name in names}
    return tables


def test_a_trace_says_how_large_it_will_be_and_where_it_is(sinklens: Run, llada: Path, tmp_path: Path) -> None:
    done = sinklens("trace", llada, "--prompt-ids", "17,42,8,99", *SHORT)
    assert done.returncode == 0
    assert "1 prompt, 8 steps, 3 of 3 layers, 4 of 4 heads: about " in done.stderr
    assert done.stdout.startswith("runs/trace-llada-1: 1 of 1 prompts, ")
    assert "next: sinklens sinks runs/trace-llada-1" in done.stdout
    again = sinklens("trace", llada, "--prompt-ids", "17,42,8,99", *SHORT, "--json")
    document = json.loads(again.stdout)
    assert document["trace"] == "runs/trace-llada-2" and document["manifest"]["complete"]
    on_disk = sum(file.stat().st_size for file in (tmp_path / "runs/trace-llada-2").rglob("*") if file.is_file())
    assert document["bytes"] == on_disk


def test_a_dry_run_estimates_and_writes_nothing(sinklens: Run, llada: Path, tmp_path: Path) -> None:
    done = sinklens("trace", llada, "--prompt-ids", "1,2", *SHORT, "--dry-run", "--json")
    estimate = json.loads(done.stdout)
    assert estimate["dry_run"] and not (tmp_path / "runs").exists()
    full = json.loads(sinklens("trace", llada, "--prompt-ids", "1,2", *SHORT, "--json").stdout)
    assert full["bytes"] / 1.5 < estimate["bytes"] < full["bytes"] * 1.5
    sinks = sinklens("trace", llada, "--prompt-ids", "1,2", *SHORT, "--dry-run", "--json", "--detail", "sinks")
    assert json.loads(sinks.stdout)["bytes"] < estimate["bytes"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--layers", "0-x"), "--layers '0-x' is no list of numbers"),
        (("--layers", "7"), "layers is [7]; expected numbers from 0 to 2"),
        (("--maps", "1@2"), "expected LAYER.HEAD@STEP"),
        (("--resume",), "--resume needs --to DIR"),
        (("--resume", "--to", "nowhere"), "nothing to resume"),
        (("--detail", "half"), "unknown detail 'half'"),
        (("--every", "0"), "Invalid value for '--every'"),
        (("--prompt", "text"), "exactly one of --prompt"),
    ],
)
def test_misuse_of_trace_is_refused_in_words(
    sinklens: Run, llada: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = sinklens("trace", llada, "--prompt-ids", "1,2", *SHORT, *arguments)
    assert done.returncode == 2 and message in done.stderr and not done.stdout


def test_an_existing_trace_is_not_overwritten(sinklens: Run, recorded: Path, llada: Path) -> None:
    done = sinklens("trace", llada, "--prompt-ids", "1,2", *SHORT, "--to", recorded)
    assert done.returncode == 2 and "already holds a trace that is complete (2 of 2 samples)" in done.stderr
    assert f"`sinklens sinks {recorded}` describes it, `sinklens explore {recorded}` shows it" in done.stderr
    assert "resume" not in done.stderr and "prompt, " not in done.stderr  # nothing to resume; no weights were loaded
    nothing = sinklens("trace", "no/such/folder/here", "--prompt-ids", "1,2", "--to", recorded)
    assert "already holds a trace" in nothing.stderr


def test_a_trace_that_is_not_complete_says_how_to_go_on(sinklens: Run, recorded: Path, llada: Path) -> None:
    shutil.rmtree(recorded / "samples" / "00001")
    path = recorded / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"complete": False}))
    done = sinklens("trace", llada, "--prompt-ids", "1,2", *SHORT, "--to", recorded)
    assert done.returncode == 2 and "already holds a trace that is not complete (1 of 2 samples)" in done.stderr
    assert "by the same command and --resume" in done.stderr and "explore" not in done.stderr


def test_a_trace_goes_only_where_nothing_else_is(sinklens: Run, llada: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    done = sinklens("trace", llada, "--prompt-ids", "1,2", *SHORT, "--to", "mine")
    assert done.returncode == 2 and "mine is not empty and holds no trace (thesis.tex)" in done.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
    wrong = sinklens("trace", llada, "--prompt-ids", "1,999", *SHORT, "--to", "new")
    assert wrong.returncode == 2 and not (tmp_path / "new").exists()  # so that the corrected command can go there
    named = sinklens("trace", llada, "--prompt-ids", "1,2", *SHORT, "--name", "a/b c")
    assert named.returncode == 0 and (tmp_path / "runs" / "trace-a-b-c-1").is_dir()
    for reversed_range in (("--layers", "2-1"), ("--maps", "0.0@5-3")):
        done = sinklens("trace", llada, "--prompt-ids", "1,2", *SHORT, *reversed_range)
        assert done.returncode == 2 and "give the smaller number first" in done.stderr


def test_prompts_come_from_files_in_every_form(sinklens: Run, talking_llada: Path, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one two\nthree\n")
    messages = [{"role": "user", "content": "two"}]
    lines = [{"prompt": "one"}, {"prompt_ids": [5, 6]}, {"messages": messages}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for file, prompts in (("p.txt", ["one two", "three"]), ("p.jsonl", ["one", None, None])):
        done = sinklens("trace", talking_llada, "--prompts", file, *SHORT, "--to", f"{file}-trace")
        assert done.returncode == 0, done.stderr
        trace = sl.open_trace(tmp_path / f"{file}-trace")
        assert [trace.info(sample).prompt for sample in trace.samples] == prompts
    plain = sl.open_trace(tmp_path / "p.txt-trace").info(1)
    done = sinklens("trace", talking_llada, "--prompt", "three", "--chat", *SHORT, "--to", "chat")
    assert done.returncode == 0, done.stderr
    assert sl.open_trace(tmp_path / "chat").info(0).prompt_length > plain.prompt_length  # only when asked


def test_a_killed_trace_opens_and_resumes_to_the_same(
    running: Running, process: Run, talking_llada: Path, tmp_path: Path
) -> None:
    (tmp_path / "p.txt").write_text("".join(f"one two {word}\n" for word in WORDS))
    command = ("trace", talking_llada, "--prompts", "p.txt", "--length", "32", "--temperature", "0.8", "--seed", "5")
    killed = running(*command, "--to", "killed")
    finished = tmp_path / "killed" / "samples"
    wait_for(lambda: finished.is_dir() and any(path.suffix == "" for path in finished.iterdir()), killed)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    opened = sl.open_trace(tmp_path / "killed")
    assert not opened.complete and 1 <= len(opened.samples) < 6
    described = process("sinks", "killed", "--parts", "tokens")
    assert described.returncode == 0 and "not complete" in described.stdout
    resumed = process(*command, "--to", "killed", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    whole = process(*command, "--to", "whole")
    assert whole.returncode == 0, whole.stderr
    assert sl.open_trace(tmp_path / "killed").complete
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_ctrl_c_keeps_what_is_finished(running: Running, talking_llada: Path, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one\n" * 50)
    process = running("trace", talking_llada, "--prompts", "p.txt", "--length", "32", "--to", "t")
    finished = tmp_path / "t" / "samples"
    wait_for(lambda: finished.is_dir() and any(path.suffix == "" for path in finished.iterdir()), process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "prompts are in t; --resume goes on" in errors and errors.count("interrupted") == 1
    assert not list(finished.glob("*.part")) and sl.open_trace(tmp_path / "t").samples


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    for _ in range(1200):
        if condition():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("waited a minute in vain")


def test_sinks_describes_a_trace(sinklens: Run, recorded: Path, tmp_path: Path) -> None:
    done = sinklens("sinks", recorded, "--parts", "all")
    assert done.returncode == 0, done.stderr
    assert "with 2 prompts the 95 % intervals are too narrow" in done.stdout
    for title in ("tracks;", "Sinks by token", "Sinks by class", "Sinks by region", "With depth", "around the commit",
                  "Explained share", "heads by verdict", "Do definitions agree?"):  # fmt: skip
        assert title in done.stdout
    written = sinklens("sinks", recorded, "--json", "--to", "out")
    document = json.loads(written.stdout)
    assert json.loads((tmp_path / "out" / "sinks.json").read_text()) == document
    entry = document["traces"][0]
    trace = sl.open_trace(recorded)
    sinks = cells = 0
    for sample in trace.samples:
        for number in trace.layers:
            layer = trace.layer(sample, number)
            sinks += int(sl.detect_sinks(layer.received, layer.expected, viewers=layer.viewers).sum())
            cells += layer.received.size
    assert (entry["overview"]["sinks"], entry["overview"]["cells"]) == (sinks, cells)
    assert sum(row["sinks"] for row in entry["tokens"]["classes"]) == sinks
    assert sum(entry["profile"]["histogram"]["counts"]) == cells
    table = pa.parquet.read_table(tmp_path / "out" / "tracks.parquet")
    assert len(table) == entry["tracks"]["tracks"] == len(sl.track_sinks(trace))
    used = sinklens("sinks", recorded, "--to", "out")
    assert used.returncode == 2 and "exists; choose another folder" in used.stderr


@pytest.mark.parametrize(
    ("metric", "value"), [("epsilon", 2), ("ratio", 3), ("gu", 0.1), ("mass", 0.1), ("sigma", 2), ("top", 2)]
)
def test_sinks_takes_every_metric(sinklens: Run, recorded: Path, metric: str, value: float) -> None:
    done = sinklens("sinks", recorded, "--metric", metric, "--value", value, "--json", "--parts", "tokens")
    entry = json.loads(done.stdout)["traces"][0]
    assert entry["question"]["metric"] == metric and entry["overview"]["sinks"] > 0
    if metric == "top":
        assert entry["overview"]["sinks"] == 2 * 2 * 8 * 3 * 4  # k x samples x steps x layers x heads


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--metric", "size"), "unknown metric 'size'"),
        (("--reading", "last_row"), "reading 'last_row' is not in this trace"),
        (("--parts", "tokens,all"), "unknown part 'all'"),
        (("--samples", "9"), "samples [9] are not in this trace"),
        (("--metric", "epsilon", "--value", "100"), "cannot be exceeded in unit"),
    ],
)
def test_misuse_of_sinks_is_refused_in_words(
    sinklens: Run, recorded: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = sinklens("sinks", recorded, *arguments)
    assert done.returncode == 2 and message in done.stderr and not done.stdout


def test_a_trace_that_keeps_sinks_only_says_what_it_cannot_tell(sinklens: Run, llada: Path, recorded: Path) -> None:
    ids = ("--prompt-ids", "17,42,8,99", "--prompt-ids", "5,6,7")
    made = sinklens("trace", llada, *ids, *SHORT, "--detail", "sinks", "--no-norms", "--to", "few")
    assert made.returncode == 0, made.stderr
    few, full = (
        json.loads(sinklens("sinks", folder, "--json", "--parts", "all").stdout)["traces"][0]
        for folder in ("few", recorded)
    )
    assert few["profile"] is None and set(few["missing"]) == {"profile", "agreement", "mechanism"}
    for same in ("sinks", "cells"):
        assert few["overview"][same] == full["overview"][same]
    assert few["tracks"]["shares"] == full["tracks"]["shares"]
    assert few["tokens"]["tokens"] == full["tokens"]["tokens"]
    shown = sinklens("sinks", "few", "--parts", "all")
    assert "no mechanism: no norms were recorded" in shown.stdout


def test_an_autoregressive_trace_has_two_readings(sinklens: Run, tiny_llama: Path) -> None:
    made = sinklens("trace", tiny_llama, "--prompt-ids", "5,6,7,8,9,10,11,12,13", "--length", "12", "--to", "ar")
    assert made.returncode == 0, made.stderr
    whole = sinklens("sinks", "ar", "--json", "--value", "0.5")
    row = sinklens("sinks", "ar", "--json", "--value", "0.5", "--reading", "last_row")
    questions = [json.loads(done.stdout)["traces"][0]["question"] for done in (whole, row)]
    assert [question["min_viewers"] for question in questions] == [8, 1]
    drawn = sinklens("figures", "ar", "--to", "figs")
    assert drawn.returncode == 0, drawn.stderr


def test_figures_are_drawn_from_a_trace(sinklens: Run, recorded: Path, tmp_path: Path) -> None:
    done = sinklens("figures", recorded, recorded, "--to", "figs", "--json")
    assert done.returncode == 0, done.stderr
    entries = {entry["id"]: entry for entry in json.loads(done.stdout)["figures"]}
    assert list(entries) == ["1", "3", "4", "5", "6a", "6b", "7", "8", "9", "10", "table2"]
    for entry in entries.values():
        assert entry["files"] or entry["note"]
        assert all((tmp_path / file).stat().st_size for file in entry["files"])
    assert {Path(file).suffix for file in entries["4"]["files"]} == {".png", ".svg", ".csv"}
    assert {Path(file).suffix for file in entries["table2"]["files"]} == {".csv", ".tex"}
    wrong = sinklens("figures", recorded, "--to", "figs", "--only", "2")
    assert wrong.returncode == 2 and "unknown figure '2'" in wrong.stderr
    fresh = sinklens("figures", recorded, "--only", "10")
    assert "written to runs/figures-1" in fresh.stdout and (tmp_path / "runs/figures-1/figure_10.png").exists()
    (tmp_path / "empty").mkdir()
    nothing = sinklens("figures", "empty", "--to", "figs")
    assert nothing.returncode == 1 and "is not a trace" in nothing.stderr


def test_figures_go_only_where_nothing_else_is(sinklens: Run, recorded: Path, tmp_path: Path) -> None:
    drawn = sinklens("figures", recorded, "--only", "10,table2", "--to", "figs")
    assert drawn.returncode == 0, drawn.stderr
    before = (tmp_path / "figs" / "figure_10.csv").stat().st_mtime_ns
    again = sinklens("figures", recorded, "--only", "10", "--to", "figs")
    assert again.returncode == 0 and (tmp_path / "figs" / "figure_10.csv").stat().st_mtime_ns > before
    (tmp_path / "figs" / "thesis.tex").touch()
    there = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "figs").iterdir())
    refused = sinklens("figures", recorded, "--only", "10", "--to", "figs")
    assert refused.returncode == 2
    assert "figs is not empty and holds no figures (thesis.tex); give a new or an empty folder" in refused.stderr
    assert sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "figs").iterdir()) == there


@pytest.mark.parametrize("command", [("sinks", "t"), ("figures", "t", "--to", "figs")])
def test_reading_a_trace_never_loads_torch(recorded: Path, shell: Run, command: tuple[str, ...]) -> None:
    code = (
        "import sys; from sinklens.cli import main\n"
        f"try: main({list(command)!r})\nexcept SystemExit as end: assert not end.code, end.code\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'loaded'"
    )
    import sys

    done = shell(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
