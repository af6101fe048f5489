"""The folder of an experiment: whole at any time, and of one experiment."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sinklens.errors import SinklensError, UsageError
from sinklens.evaluation.answering import ROW
from sinklens.evaluation.conditions import Condition, parse_condition
from sinklens.evaluation.store import EXPERIMENT, FORMAT, TABLES, Batch, Store, differences
from sinklens.files import temporary_name
from sinklens.locks import LOCK

FOUR = Batch(model="m", task="t", condition=parse_condition("sinks:top=5,keys=cached"), start=0, stop=4)


def document(problems: int = 4, **decisive: Any) -> dict[str, Any]:
    return {"fingerprint": json.dumps(decisive, sort_keys=True), "problems": problems, "decisive": decisive}


def row(**given: Any) -> dict[str, Any]:
    """Nothing but its place."""
    empty = dict.fromkeys(ROW)
    return empty | {"model": "m", "task": "t", "condition": "none", "problem": 0, "right": True} | given


def tables(**more: Any) -> dict[str, Any]:
    timing = {**FOUR.head(), "batch": 4, "seconds": 0.5, "followed": False, "device": "cpu"}
    return {"rows": [row(problem=number, dose=0.5) for number in range(4)], "timings": [timing], "flows": [], **more}


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "a" / "b")
    flow = {**FOUR.head(), "neighbours": 0.25, "next_ranked": 0.5, "others": 0.25, "null": 0.0, "new_sinks": None}
    with store.claimed(document()):
        store.save(FOUR, tables(flows=[flow]))
    rows = store.read("rows")
    assert rows.schema.names == list(ROW) and rows.to_pylist() == tables()["rows"]
    assert {str(field.type) for field in rows.schema} == {"string", "int64", "double", "bool"}
    assert store.read("timings", ["seconds", "problems"]).to_pylist() == [{"seconds": 0.5, "problems": 4}]
    assert store.read("flows").to_pylist() == [flow]
    assert store.finished() == {FOUR.name} and store.spans() == [(0, 4)]
    assert (store.document() or {})["format"] == FORMAT
    assert pq.read_table(store.folder / "rows").num_rows == 4  # one data set for every reader


def test_an_empty_folder_has_tables_without_rows(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.document() is None and store.finished() == set() and store.spans() == []
    assert {name: store.read(name).num_rows for name in TABLES} == dict.fromkeys(TABLES, 0)


def test_every_batch_has_a_name_of_its_own_that_people_can_read() -> None:
    names = {
        Batch(model=model, task=task, condition=condition, start=start, stop=start + 4).name
        for model in ("a/b", "a_b")
        for task in ("t", "u")
        for condition in (
            Condition(),
            *(parse_condition(f"random:top={top},draw={draw}") for top in (1, 2) for draw in (0, 1)),
        )
        for start in (0, 4)
    }
    assert len(names) == 2 * 2 * 5 * 2
    assert FOUR.name.startswith("m.t.sinks_top_5_keys_cached.") and FOUR.name.endswith(".000000-000004.parquet")
    assert all(not set(name) & set("/:= ") for name in names)


@pytest.mark.parametrize("table", ["timings", "rows"])
def test_a_batch_that_is_cut_short_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    store, replace = Store(tmp_path), os.replace

    def killed(source: Path, to: Path) -> None:
        if Path(to).parent.name == table:
            raise KeyboardInterrupt
        replace(source, to)

    with store.claimed(document()), monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            store.save(FOUR, tables())
    assert store.finished() == set() and store.read("rows").num_rows == 0
    temporary_name(tmp_path / table / FOUR.name).write_bytes(b"PAR1")  # as a killed process leaves it
    assert store.finished() == set() and store.read(table).num_rows == 0
    with store.claimed(document()):
        assert not list(tmp_path.rglob("*.part"))
        store.save(FOUR, tables())
    assert store.read("rows").num_rows == 4 and store.read("timings").num_rows == 1


def test_a_folder_of_a_writer_killed_at_its_first_file_is_still_empty(tmp_path: Path) -> None:
    temporary_name(tmp_path / EXPERIMENT).write_text("{")
    with Store(tmp_path).claimed(document()):
        assert not list(tmp_path.rglob("*.part"))


def test_rows_are_on_the_disk_before_they_have_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append("sync"), sync(file))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append(Path(b).parent.name), replace(a, b))[1])
    Store(tmp_path).save(FOUR, tables())
    assert done == ["sync", "timings", "sync", "sync", "rows", "sync"]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        Store(tmp_path).claimed(document()),
        pytest.raises(SinklensError, match="another process is writing"),
        Store(tmp_path).claimed(document()),
    ):
        pass
    with Store(tmp_path).claimed(document()):  # free again
        pass


def test_another_experiment_is_refused_with_what_differs(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.claimed(document(length=64, cells=["none", "sinks:top=1"], tasks={"t": {"seed": 0}})):
        pass
    message = (
        r'holds another experiment: cells: nothing there, \["sinks:top=5"\] now; length: 64 there, 32 now; '
        r"tasks.t.seed: 0 there, 1 now; run it with the same settings"
    )
    other = document(length=32, cells=["none", "sinks:top=1", "sinks:top=5"], tasks={"t": {"seed": 1}})
    with pytest.raises(UsageError, match=message), store.claimed(other):
        pass


def test_problems_may_grow_and_what_made_the_rows_stays_said(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for problems, command in ((4, "first"), (2, "fewer"), (8, "more"), (8, "again")):
        with store.claimed({**document(problems), "command": command}):
            pass
        found = store.document() or {}
        assert (found["problems"], found["command"]) == ((8, "more") if problems == 8 else (4, "first"))


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    message = r"is not empty and holds no experiment \(thesis.tex\); give a new"
    with pytest.raises(UsageError, match=message), Store(tmp_path).claimed(document()):
        pass
    (tmp_path / EXPERIMENT).write_text('{"format": "other"}')
    message = "does not say format 'sinklens-experiment'"
    with pytest.raises(UsageError, match=message), Store(tmp_path).claimed(document()):
        pass
    assert not (tmp_path / LOCK).exists()
    (tmp_path / EXPERIMENT).write_text("{")
    with pytest.raises(SinklensError, match="is damaged"):
        Store(tmp_path).document()


def test_where_nothing_can_be_written_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(UsageError, match=r"file is a file; give a folder"),
        Store(tmp_path / "file").claimed(document()),
    ):
        pass
    message = r"cannot write to .*file/a.*; choose another folder"
    with pytest.raises(SinklensError, match=message), Store(tmp_path / "file" / "a").claimed(document()):
        pass
    (tmp_path / "rows").touch()
    with pytest.raises(SinklensError, match=r"cannot write .*rows"):
        Store(tmp_path).save(FOUR, {"rows": [row()]})


def test_differences_are_named_where_they_are() -> None:
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": True}) == [
        "a.c: 2 there, 3 now",
        "d: nothing there, true now",
    ]
    assert differences({"a": 1}, {"a": 1}) == []
