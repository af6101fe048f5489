"""A text experiment on disk: chunks, rows, resuming, and the cells that come of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sinklens as sl
from sampling.tiny_causal import tiny_causal
from sinklens.errors import UsageError
from sinklens.evaluation import text_experiment as module
from sinklens.evaluation.conditions import Condition, parse_condition
from sinklens.evaluation.perplexity import masked_nll
from sinklens.evaluation.text_experiment import TextCell, standard_cells, text_experiment
from sinklens.evaluation.text_result import read_rows, summarise
from sinklens.evaluation.texts import cut_chunks, read_text


class Letters:
    """A tokenizer with an id for every letter."""

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) - ord("a") for letter in text]}


def test_the_first_chunks_of_all_pages_come_first() -> None:
    chunks = cut_chunks(Letters(), "aabbc\fddee\ff\fgghhii", chunks=6, length=2)
    words = ["".join(chr(int(one) + ord("a")) for one in row) for row in chunks]
    assert words == ["aa", "dd", "gg", "bb", "ee", "hh"]
    assert torch.equal(cut_chunks(Letters(), "aabbc\fddee\ff\fgghhii", chunks=2, length=2), chunks[:2])
    with pytest.raises(UsageError, match="the text has 7 chunks of 2 tokens; 8 are asked for"):
        cut_chunks(Letters(), "aabbc\fddee\ff\fgghhii", chunks=8, length=2)
    with pytest.raises(UsageError, match="came without a tokenizer"):
        cut_chunks(None, "a", chunks=1, length=1)


def test_a_text_is_known_by_its_hash(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("abc", encoding="utf-8")
    assert read_text(tmp_path / "a") == ("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    (tmp_path / "b").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read as a text in UTF-8"):
        read_text(tmp_path / "b")


@pytest.fixture(scope="module")
def model():
    return sl.wrap(tiny_causal("llama").double())


@pytest.fixture(scope="module")
def chunks() -> torch.Tensor:
    return torch.randint(1, 64, (3, 20), generator=torch.Generator().manual_seed(2))


def cells(*texts: str) -> list[TextCell]:
    return [TextCell(condition=parse_condition(text)) for text in texts]


STAGES = [
    [*cells("none", "sinks:top=1,keys=cached", "sinks:top=1,keys=recomputed"),
     TextCell(condition=parse_condition("sinks:top=1,keys=cached"), ranked="steps", clean=1)],
    cells("random:top=1,keys=cached"), cells("random:top=1,keys=cached,draw=1"),
]  # fmt: skip


def test_rows_are_what_masked_nll_says_and_are_not_run_twice(model, chunks, tmp_path: Path, monkeypatch) -> None:
    asked: dict[str, Any] = {"to": tmp_path, "identity": {"model": "m", "text": "t"}, "first": 8, "seed": 4}
    running = text_experiment(model, chunks, STAGES, **asked)
    assert [next(running), next(running)] == [(1, 9), (2, 9)]
    running.close()  # broken off
    assert len(read_rows(tmp_path)) == 8 and not (tmp_path / "result.json").exists()
    assert list(text_experiment(model, chunks, STAGES, **asked))[-1] == (7, 7)
    rows = read_rows(tmp_path)
    assert len(rows) == 3 * (4 + 2)
    for row in rows:
        expected = masked_nll(
            model, chunks, parse_condition(row["condition"]), first=8, seed=4, ranked=row["ranked"], clean=row["clean"]
        )[row["chunk"]]
        assert row["nll"] == pytest.approx(expected.nll, abs=1e-12) and row["tokens"] == 12
        assert row["dose"] == (None if expected.dose is None else pytest.approx(expected.dose))
    monkeypatch.setattr(module, "chunk_nll", None)  # nothing is left to run
    assert list(text_experiment(model, chunks, STAGES, **asked)) == []
    assert json.loads((tmp_path / "result.json").read_text())["experiment"] == {
        "model": "m", "text": "t", "length": 20, "first": 8, "seed": 4, "dtype": "torch.float64",
    }  # fmt: skip
    with pytest.raises(UsageError, match="holds an experiment with seed 4, not 5; choose another folder"):
        list(text_experiment(model, chunks, STAGES, **asked | {"seed": 5}))


def row(text: str, chunk: int, nll: float, *, dose: float | None = None, ranked: str = "prompt") -> dict[str, Any]:
    return {
        "chunk": chunk, "condition": text, "ranked": ranked, "clean": None, "nll": nll,
        "dose": dose, "removed": dose, "keys_removed": None,
    }  # fmt: skip


def test_differences_are_taken_chunk_by_chunk_and_draws_are_averaged_first() -> None:
    level = [1.0, 5.0, 3.0, 2.0]
    rows = [row("none", chunk, nll) for chunk, nll in enumerate(level)]
    rows += [row("sinks:top=1,keys=cached", chunk, nll + 0.5, dose=0.8) for chunk, nll in enumerate(level)]
    rows += [row("sinks:top=1,keys=recomputed", chunk, nll + 0.1, dose=0.6) for chunk, nll in enumerate(level)]
    for draw, shift in (("", -0.1), (",draw=1", 0.3)):
        rows += [row(f"random:top=1,keys=cached{draw}", chunk, nll + shift) for chunk, nll in enumerate(level)]
    found = {entry["condition"]: entry for entry in summarise(reversed(rows))}
    assert set(found) == {
        "none", "sinks:top=1,keys=cached", "sinks:top=1,keys=recomputed", "random:top=1,keys=cached",
    }  # fmt: skip
    plain, cached, random = (found[name] for name in ("none", "sinks:top=1,keys=cached", "random:top=1,keys=cached"))
    assert plain["nll"]["value"] == pytest.approx(2.75) and plain["to_unmasked"] is None
    assert plain["perplexity"] == pytest.approx(np.exp(2.75))
    assert plain["nll"]["low"] < 2.0 and plain["nll"]["high"] > 3.5  # chunks differ much
    for end in ("value", "low", "high"):  # and a cell differs from another by the same in each
        assert cached["to_unmasked"][end] == pytest.approx(0.5)
        assert cached["to_random"][end] == pytest.approx(0.4)
        assert cached["to_recomputed"][end] == pytest.approx(0.4)
        assert random["to_unmasked"][end] == pytest.approx(0.1)
    assert (random["draws"], cached["draws"], cached["to_unmasked"]["n"]) == (2, 1, 4)
    assert cached["dose"] == pytest.approx(0.8) and plain["dose"] is None


def test_a_difference_counts_the_chunks_that_both_cells_have() -> None:
    rows = [row("none", chunk, 1.0) for chunk in range(4)]
    rows += [row("sinks:top=1", chunk, 2.0) for chunk in (1, 3, 7)]
    found = {entry["condition"]: entry for entry in summarise(rows)}
    assert found["sinks:top=1"]["to_unmasked"]["n"] == 2 and found["sinks:top=1"]["nll"]["n"] == 3
    with pytest.raises(UsageError, match="no rows without a mask"):
        summarise(rows[4:])


def test_the_standard_cells() -> None:
    """Position 0, top 1, 5 and 10, and random keys in five draws; cached and recomputed; per head and for the model."""
    stages = standard_cells()
    every = [cell for stage in stages for cell in stage]
    assert len({json.dumps(cell.columns) for cell in every}) == len(every)
    assert stages[0][0].condition == Condition()
    sinks = {(c.condition.top, c.condition.keys, c.condition.scope) for c in every
             if c.condition.choose == "sinks" and c.ranked == "prompt" and not c.condition.rank_by}  # fmt: skip
    assert sinks == {
        (k, keys, scope) for k in (1, 5, 10) for keys in ("cached", "recomputed") for scope in ("head", "model")
    }
    random = [c.condition for c in every if c.condition.random]
    assert len(random) == 5 * 2 * 2 and {c.draw for c in random} == set(range(5))
    assert {c.condition.keys for c in every if c.condition.choose == "first"} == {"cached", "recomputed"}
    assert {(c.condition.top, c.clean) for c in every if c.ranked == "steps"} == {
        (k, clean) for k in (1, 5, 10) for clean in (None, 1)
    }
