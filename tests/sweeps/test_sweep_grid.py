"""From a TOML file to jobs: what is refused, in which order they come, and what tells them apart."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_jobs import GRID

from sinklens.errors import UsageError
from sinklens.sweeps.grid import jobs_of, read_grid
from sinklens.sweeps.job import Checkpoint, Job

ROOT = Path(__file__).parents[2]
INTERVENTIONS = ["none", "sinks:top=1", "sinks:top=5,keys=cached", "random:top=5", "mass:top=5", "first:top=1"]


def test_jobs_stand_in_the_order_of_the_axes() -> None:
    grid = {**GRID, "models": ["tiny-llama", {"name": "tiny-llada", "dtype": "bfloat16"}]}
    grid["tasks"] = ["word_problems", {"task": "passkey", "length": 8, "split": "numbers"}]
    jobs = jobs_of(grid)
    cells = [(str(job.model), job.answering.task, str(job.condition), job.seed) for job in jobs]
    masks = [("none", None), ("sinks:top=1", None), ("random:top=1", 0), ("random:top=1", 1)]
    tasks = ("word_problems", "passkey")
    assert cells == [(m, t, *mask) for m in ("tiny-llama", "tiny-llada, bfloat16") for t in tasks for mask in masks]
    assert [job.answering.length for job in jobs[:8]] == [12] * 4 + [8] * 4
    assert [job.answering.split for job in jobs[:8]] == ["test"] * 4 + ["numbers"] * 4
    assert {job.problems for job in jobs} == {2}


def test_a_table_and_a_text_are_the_same_intervention() -> None:
    texts = jobs_of({**GRID, "interventions": ["sinks:epsilon=3,act=zero", "random:top=2"]})
    tables = [{"choose": "sinks", "epsilon": 3, "act": "zero"}, {"choose": "random", "top": 2}]
    assert [job.fingerprint for job in jobs_of({**GRID, "interventions": tables})] == [j.fingerprint for j in texts]


@given(
    models=st.lists(st.sampled_from(["tiny-llama", "tiny-llada", "a/b", "folder"]), min_size=1, unique=True),
    interventions=st.lists(st.sampled_from(INTERVENTIONS), min_size=1, unique=True),
    seeds=st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True),
)
def test_every_cell_is_one_job_whatever_stands_beside_it(
    models: list[str], interventions: list[str], seeds: list[int]
) -> None:
    jobs = jobs_of({**GRID, "models": models, "interventions": interventions, "seeds": seeds})
    drawn = sum(text.startswith(("random", "mass")) for text in interventions)
    assert len(jobs) == len(models) * (drawn * len(seeds) + len(interventions) - drawn)
    assert len({job.fingerprint for job in jobs}) == len(jobs)
    last = jobs[-1]
    alone = {"models": [last.model.name], "interventions": [str(last.condition)], "seeds": seeds[-1:]}
    assert jobs_of({**GRID, **alone})[0].fingerprint == last.fingerprint


def job() -> Job:
    return jobs_of({**GRID, "interventions": ["random:top=1"]})[0]


def test_the_fingerprint_is_the_hash_of_what_is_listed() -> None:
    listed = json.dumps(job().as_dict(), sort_keys=True)
    assert job().fingerprint == sha256(listed.encode()).hexdigest()[:16]
    assert {"model", "condition", "answering", "problems"} < job().as_dict().keys()


@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, model=Checkpoint(name="tiny-llada")),
        lambda one: replace(one, model=Checkpoint(name="tiny-llama", dtype="bfloat16")),
        lambda one: replace(one, model=Checkpoint(name="tiny-llama", revision="main")),
        lambda one: replace(one, condition=replace(one.condition, top=2)),
        lambda one: replace(one, condition=replace(one.condition, draw=1)),
        lambda one: replace(one, answering=replace(one.answering, length=13)),
        lambda one: replace(one, answering=replace(one.answering, batch=1)),
        lambda one: replace(one, answering=replace(one.answering, seed=1)),
        lambda one: replace(one, problems=3),
    ],
)
def test_what_decides_rows_changes_the_fingerprint(change: Callable[[Job], Job]) -> None:
    assert change(job()).fingerprint != job().fingerprint


def test_what_does_not_decide_rows_leaves_the_fingerprint() -> None:
    assert replace(job(), answering=replace(job().answering, unsafe=True)).fingerprint == job().fingerprint
    quiet = jobs_of({**GRID, "interventions": ["none"], "seeds": [0]})[0]
    other = jobs_of({**GRID, "interventions": ["none"], "seeds": [5]})[0]
    assert (quiet.fingerprint, quiet.seed) == (other.fingerprint, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": ["a"]}, "has no setting model; expected some of models, tasks, interventions, seeds, problems"),
        ({"models": []}, "models is empty; expected a list with at least one entry"),
        ({"models": "tiny-llama"}, "models is 'tiny-llama'; expected a list"),
        ({"models": [{"dtype": "float32"}]}, r"models\[0\]: name is None; expected a text such as 'tiny-llama'"),
        ({"models": [{"name": "a", "type": "b"}]}, r"models\[0\] has no setting type; expected some of name, dtype"),
        ({"models": [3]}, r"models\[0\] is 3; expected a table of settings"),
        ({"tasks": []}, "tasks is empty"),
        ({"tasks": ["sums"]}, r"tasks\[0\]: unknown task 'sums'; expected one of .*'word_problems'"),
        ({"tasks": [{"length": 3}]}, r"tasks\[0\] names no task; expected task = NAME"),
        ({"tasks": [{"task": "passkey", "seed": 3}]}, r"tasks\[0\] has no setting seed; expected some of task, split"),
        ({"interventions": []}, "interventions is empty"),
        ({"interventions": ["sinks:tip=1"]}, r"interventions\[0\]: 'tip=1' in condition .* expected NAME=VALUE"),
        ({"interventions": ["none", "sink:top=1"]}, r"interventions\[1\]: unknown choice of keys .*'sink'"),
        ({"interventions": [{"choose": "sinks", "tip": 1}]}, r"interventions\[0\] has no setting tip; expected some"),
        ({"interventions": [{"choose": "sinks"}]}, r"interventions\[0\]: 'sinks' with top=None"),
        ({"seeds": []}, "seeds is empty"),
        ({"seeds": [-1]}, r"seeds\[0\] is -1; expected a whole number from 0"),
        ({"seeds": [True]}, r"seeds\[0\] is True; expected a whole number"),
        ({"problems": 0}, "problems is 0; expected a whole number from 1"),
        ({"answering": 3}, "answering is 3; expected a table of settings"),
        ({"answering": {"lenght": 3}}, "answering has no setting lenght; expected some of split"),
        ({"answering": {"length": "64"}}, r"tasks\[0\]: length is '64'; expected a whole number"),
        ({"answering": {"length": 6.5}}, r"tasks\[0\]: length is 6.5; expected a whole number"),
        ({"answering": {"length": True}}, r"tasks\[0\]: length is True; expected a whole number"),
        ({"answering": {"threshold": "high"}}, r"tasks\[0\]: threshold is 'high'; expected a number"),
        ({"answering": {"unsafe": 1}}, r"tasks\[0\]: unsafe is 1; expected true or false"),
        ({"answering": {"data": 1}}, r"tasks\[0\]: data is 1; expected a text"),
        (
            {"interventions": ["none", "unmasked"]},
            "the same job twice: tiny-llama, word_problems, unmasked; name every",
        ),
        ({"seeds": [1, 1]}, "the same job twice: tiny-llama, word_problems, 1 random, seed 1"),
    ],
)
def test_what_cannot_be_meant_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^g.toml.*{message}"):
        jobs_of({**GRID, **change}, source="g.toml")


@pytest.mark.parametrize("name", ["models", "tasks", "problems"])
def test_what_is_missing_is_named(name: str) -> None:
    with pytest.raises(UsageError, match=f"^the grid: {name} is missing; expected"):
        jobs_of({key: value for key, value in GRID.items() if key != name})


def test_a_whole_number_is_a_number() -> None:
    one, same = (jobs_of({**GRID, "answering": {"threshold": value}})[0] for value in (1, 1.0))
    assert isinstance(one.answering.threshold, float) and one.fingerprint == same.fingerprint


def test_a_file_that_is_no_grid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no file .*none.toml; give a TOML file with models, tasks"):
        read_grid(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("models = [")
    with pytest.raises(UsageError, match=r"bad.toml cannot be read as TOML \(.*\); see docs/sweeps.md"):
        read_grid(tmp_path / "bad.toml")


def test_the_example_and_the_page_show_grids_that_can_be_read(tmp_path: Path) -> None:
    document, jobs = read_grid(ROOT / "examples" / "sweep.toml")
    assert document["problems"] == 32 and len(jobs) == 3 * 2 * (2 + 2)
    shown = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "sweeps.md").read_text("utf-8"), re.DOTALL)
    assert shown
    for number, text in enumerate(shown):
        path = tmp_path / f"{number}.toml"
        path.write_text(text)
        assert read_grid(path)[1]
