"""Batches that do not fit into memory are halved, told of and recorded; what cannot be halved ends in words."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import sinklens
from sinklens.cli import main
from sinklens.evaluation.answering import Answering, answer_problems, problems
from sinklens.evaluation.conditions import parse_condition
from sinklens.evaluation.memory import Room, is_out_of_memory
from sinklens.evaluation.store import Store
from sinklens.models.language_model import LanguageModel

SHORT = "CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation"


@contextmanager
def memory_for(rows: int) -> Iterator[list[int]]:
    """Every model refuses batches of more rows; the sizes that were tried."""
    tried: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        original = torch.nn.Embedding.forward

        def forward(self: torch.nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
            tried.append(len(ids))
            if len(ids) > rows:
                raise torch.OutOfMemoryError(SHORT)
            return original(self, ids)

        patch.setattr(torch.nn.Embedding, "forward", forward)
        yield tried


def test_room_halves_until_it_fits_and_remembers() -> None:
    room, done = Room("things"), []

    def work(some: Any) -> int:
        if len(some) > 3:
            raise MemoryError
        done.append(list(some))
        return len(some)

    with pytest.warns(UserWarning, match=r"out of memory with \d+ things at a time \(MemoryError\); going on with"):
        assert room.run(range(10), work) == [3, 2, 3, 2]
    assert [one for some in done for one in some] == list(range(10)) and room.most == 3
    assert room.run(range(4), work) == [3, 1]  # tried at once, without a word


def test_what_cannot_be_halved_passes() -> None:
    def work(some: Any) -> None:
        raise torch.OutOfMemoryError(SHORT) if len(some) == 1 else KeyError("mine")

    with pytest.raises(torch.OutOfMemoryError):
        Room("things").run([1], work)
    with pytest.raises(KeyError, match="mine"):
        Room("things").run([1, 2], work)
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 1 bytes"))
    assert not is_out_of_memory(RuntimeError("shape mismatch"))


@pytest.fixture(scope="module")
def llama() -> LanguageModel:
    model: LanguageModel = sinklens.load("tiny-llama", device="cpu")
    return model


def test_rows_are_the_same_but_for_what_is_measured_over_a_batch(llama: LanguageModel) -> None:
    answering = Answering(task="word_problems", length=4, batch=4)
    items, condition, room = problems(answering, 4), parse_condition("random:top=1"), Room("problems")
    whole = answer_problems(llama, items, condition, answering)
    with (
        memory_for(2),
        pytest.warns(UserWarning, match=r"with 4 problems .*Tried to allocate 2.00 GiB\.\); going on with 2"),
    ):
        parts = answer_problems(llama, items, condition, answering, room=room)
    measured = ("dose", "keys_removed", "steps")
    plain = [[{k: v for k, v in row.items() if k not in measured} for row in rows] for rows in (whole, parts)]
    assert plain[0] == plain[1] and room.most == 2


def test_with_a_threshold_rows_depend_on_their_neighbours_and_nothing_is_halved() -> None:
    model = sinklens.load("tiny-llada", device="cpu")
    answering = Answering(task="word_problems", length=4, batch=2, threshold=0.9)
    with memory_for(1), pytest.raises(torch.OutOfMemoryError):
        answer_problems(model, problems(answering, 2), parse_condition("none"), answering)


Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def program(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
        monkeypatch.setattr(sys, "argv", ["sinklens"])
        with pytest.raises(SystemExit) as end:
            main([*map(str, arguments), "--device", "cpu"])
        told = capsys.readouterr()
        code = end.value.code or 0
        assert isinstance(code, int)
        return subprocess.CompletedProcess(arguments, code, told.out, told.err)

    return run


@pytest.mark.filterwarnings("default:out of memory")
def test_evaluate_says_it_and_records_it(program: Program, tmp_path: Path) -> None:
    with memory_for(2):
        done = program("evaluate", "tiny-llama", "--problems", 8, "--batch", 4, "--length", 4, "--to", "a", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["results"][0]["problems"] == 8
    told = f"warning: out of memory with 4 problems at a time ({SHORT.splitlines()[0]}); going on with 2"
    assert done.stderr.count(told) == 1
    assert Store(tmp_path / "a").read("timings", ["problems", "batch"]).to_pylist() == [{"problems": 4, "batch": 2}] * 2


@pytest.mark.filterwarnings("default:out of memory")
def test_compress_goes_on_with_the_cells_that_are_left(program: Program, tmp_path: Path) -> None:
    from sinklens.evaluation.compress_store import CompressStore

    asked = (
        "compress",
        "tiny-llama",
        "--keep",
        "50%",
        "--order",
        "low",
        "--lengths",
        64,
        "--problems",
        4,
        "--batch",
        4,
    )
    assert program(*asked, "--rows-only", "--to", "whole").returncode == 0
    with memory_for(2) as tried:
        done = program(*asked, "--rows-only", "--to", "parts")
    assert done.returncode == 0 and "going on with 2" in done.stderr and max(tried) == 4 and tried.count(4) == 1
    tables = [CompressStore(tmp_path / name).read("rows") for name in ("whole", "parts")]
    one, other = (table.sort_by([("cell", "ascending"), ("problem", "ascending")]) for table in tables)
    assert one.drop(["cache_bytes"]).equals(other.drop(["cache_bytes"]))
    assert CompressStore(tmp_path / "parts").read("timings")["problems"].to_pylist() == [2, 2, 2, 2]


def test_one_that_does_not_fit_ends_with_advice(program: Program, tmp_path: Path) -> None:
    with memory_for(0):
        done = program("trace", "tiny-llada", "--prompt", "One", "--length", 4, "--to", "a")
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.splitlines()[-1] == (
        f"error: out of memory ({SHORT.splitlines()[0]}); what was finished is kept: ask for less at a time (--batch, "
        "--length), a smaller --dtype such as bfloat16, or another --device"
    )
