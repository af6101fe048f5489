"""Answers and losses under a cut cache: the same as without our short cuts; folders that go on where they stopped."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import sinklens as sl
from evaluation.compressed_models import Characters, small_decoder
from sinklens.cache.compress import compress
from sinklens.cache.settings import ORDERS, Compression
from sinklens.errors import UsageError
from sinklens.evaluation import compress_experiment
from sinklens.evaluation.compress_answering import answer, settings_of
from sinklens.evaluation.compress_cells import Cell, cross
from sinklens.evaluation.compress_experiment import CompressExperiment, run
from sinklens.evaluation.compress_problems import Asking, Problem, make_problems
from sinklens.evaluation.compress_result import summarise
from sinklens.evaluation.compress_store import CompressStore
from sinklens.evaluation.compress_text import foreseen, pack, read
from sinklens.sampling.autoregressive import AutoregressiveSampler

LENGTH = 80


@pytest.fixture(scope="module")
def model() -> Any:
    return small_decoder()


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    (made,) = make_problems(Characters(), "passkey", Asking(lengths=(LENGTH,)), count=3)
    return made


@pytest.mark.parametrize(
    ("order", "strict"), [*((order, False) for order in ORDERS), ("low", True), ("random", True), ("fastgen", True)]
)
def test_a_shared_prompt_gives_what_generating_gives(
    model: Any, problems: list[Problem], order: str, strict: bool
) -> None:
    cell = Cell(order=order, keep="15%", strict=strict)
    (found,) = answer(model, problems, [cell])
    settings = settings_of(model, cell, problems, seed=0)
    assert settings.keep == 12 and len(set(settings.seed)) == 3
    new = problems[0].new_tokens
    with compress(model, settings) as cut:
        ids = torch.tensor([problem.ids for problem in problems])
        out = sl.generate(model, ids, AutoregressiveSampler(length=new))
    for row, whole, count in zip(found.rows, out.ids.tolist(), out.lengths.tolist(), strict=True):
        kept = [token for token in whole[LENGTH : LENGTH + count] if token != 2]
        assert row["text"] == model.tokenizer.decode(kept[:new])
    assert cut.lengths[0] > cut.lengths[2]
    entry = 2 * 8 * 8 * 2  # keys and values, dim, bytes, kv heads
    assert [row["cache_bytes"] for row in found.rows] == [entry * (2 * LENGTH + 2 * 12)] * 3


def test_draws_belong_to_their_problem(model: Any, problems: list[Problem]) -> None:
    cell = Cell(order="random", keep="20%", draw=1)
    (together,) = answer(model, problems, [cell])
    (alone,) = answer(model, problems[1:2], [cell])
    assert alone.rows == together.rows[1:2]
    (other,) = answer(model, problems, [replace(cell, draw=2)])
    assert [row["text"] for row in other.rows] != [row["text"] for row in together.rows]


def test_everything_kept_is_the_whole_cache(model: Any, problems: list[Problem]) -> None:
    plain, kept = answer(model, problems, [Cell(), Cell(order="high", keep="100%")])
    assert [row["text"] for row in plain.rows] == [row["text"] for row in kept.rows]
    assert [row["cache_bytes"] for row in plain.rows] == [row["cache_bytes"] for row in kept.rows]


def test_prompts_of_unequal_length_are_not_answered_together(model: Any, problems: list[Problem]) -> None:
    with pytest.raises(UsageError, match="need prompts of equal length; group them first"):
        list(answer(model, [problems[0], replace(problems[1], ids=problems[1].ids[1:])], [Cell()]))


def chunks(count: int = 2, length: int = 24) -> torch.Tensor:
    return pack(Characters(), ["A long text about nothing much. " * 20], length=length, count=count)


def test_chunks_are_packed_behind_a_bos() -> None:
    made = pack(Characters(), ["abcd", "efghijk"], length=5, count=3)
    assert made.tolist() == [[1, *b"abcd"], [1, 2, *b"efg"], [1, *b"hijk"]]
    with pytest.raises(UsageError, match="the text has 3 chunks of 5 tokens, 4 are asked for; give more text"):
        pack(Characters(), ["abcd", "efghijk"], length=5, count=4)
    with pytest.raises(UsageError, match="chunks of 2 tokens are asked for"):
        pack(Characters(), ["abcd"], length=2, count=1)


@pytest.mark.parametrize("settings", [{"schedule": "cap"}, {"schedule": "saw", "above": 12}])
@pytest.mark.parametrize("order", ["low", "random", "received"])
def test_the_first_tokens_at_once_are_token_by_token(model: Any, settings: dict[str, Any], order: str) -> None:
    ids, compression = chunks(), Compression(order=order, keep=10, skip=(0,), seed=(5, 6), **settings)
    found, hits = foreseen(model, ids, compression)
    expected, lengths = [], []
    cache: Any = None
    with compress(model, compression) as cut, torch.no_grad():
        for place in range(ids.shape[1] - 1):
            logits, cache = model.decode(ids[:, place : place + 1], None, cache)
            expected.append(-logits[:, 0].log_softmax(-1).gather(1, ids[:, place + 1 : place + 2])[:, 0])
            lengths.append(cut.lengths[1])
    torch.testing.assert_close(found.double(), torch.stack(expected, dim=1), rtol=0, atol=1e-5)
    assert max(lengths) == (10 if "above" not in settings else 11) and found.shape == hits.shape == (2, 23)


def test_a_stride_cuts_less_often(model: Any) -> None:
    ids, compression = chunks(), Compression(order="recent", keep=10, skip=(0,), schedule="cap")
    plain, _ = foreseen(model, ids, None)
    each, _ = foreseen(model, ids, compression)
    seldom, _ = foreseen(model, ids, compression, stride=7)
    torch.testing.assert_close(each[:, :10], plain[:, :10], rtol=0, atol=1e-5)
    torch.testing.assert_close(seldom[:, :10], plain[:, :10], rtol=0, atol=1e-5)
    assert not torch.allclose(each[:, 11:], plain[:, 11:], atol=1e-3)
    assert not torch.allclose(each[:, 11:], seldom[:, 11:], atol=1e-3)


def test_reading_refuses_what_cannot_be_meant(model: Any) -> None:
    with pytest.raises(UsageError, match="schedule 'once' with a text that is read from its beginning"):
        list(read(model, chunks(), [Cell(order="low", keep="50%")], numbers=[0, 1]))
    with pytest.raises(UsageError, match="stride is 0; expected at least 1"):
        list(read(model, chunks(), [Cell()], numbers=[0, 1], stride=0))


def test_problems_of_every_task(tmp_path: Path) -> None:
    hay = ("One. Two. Three. ",)
    needles = make_problems(
        Characters(), "needle", Asking(lengths=(300, 400), depths=(0.0, 1.0), documents=hay), count=2
    )
    assert [(group[0].length, group[0].depth, len(group)) for group in needles] == [
        (300, 0.0, 2), (300, 1.0, 2), (400, 0.0, 2), (400, 1.0, 2),
    ]  # fmt: skip
    assert {len(one.ids) for one in needles[2]} == {400}
    assert needles[0][0].score("a sandwich", []) == {"score": 2 / 11, "right": None}
    with pytest.raises(UsageError, match="needle needs a text to hide the needle in"):
        make_problems(Characters(), "needle", Asking(), count=1)
    paper = make_problems(Characters(), "passkey", Asking(paper_grid=True), count=1)
    assert len(paper) == 32 and [group[0].length for group in paper[:2]] == [3072, 7168]
    found = paper[0][0]
    assert found.score("", found.answer_ids) == {"score": 1.0, "right": True}
    assert found.score("", found.answer_ids[:-1]) == {"score": 0.0, "right": False}
    grid = make_problems(Characters(), "needle", Asking(paper_grid=True, documents=hay), count=1)
    assert len(grid) == 130
    row = '{"input": "Who?", "context": "%s", "answers": ["Tom"]}\n' % ("x" * 500)
    (tmp_path / "qasper.jsonl").write_text(row * 3)
    asking = Asking(lengths=(100, 200), sets=("qasper",), data=str(tmp_path))
    (some,) = make_problems(Characters(), "longbench", asking, count=2)
    assert [(one.set, one.number, len(one.ids), one.new_tokens) for one in some] == [
        ("qasper", 0, 200, 128), ("qasper", 1, 200, 128),
    ]  # fmt: skip
    assert some[0].score("tom", []) == {"score": 1.0, "right": None}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"wording": "mine"}, "unknown wording 'mine'"),
        ({"sets": ("lcc",)}, "unknown set 'lcc'"),
        ({"lengths": ()}, r"lengths are \(\); expected numbers of tokens"),
        ({"depths": (2.0,)}, r"depths are \(2.0,\); expected shares"),
    ],
)
def test_asking_for_what_cannot_be(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Asking(**given)


def experiment(model: Any, **changed: Any) -> CompressExperiment:
    crossed: dict[str, Any] = {"orders": ["low", "random"], "skips": ["0"], "draws": 2}
    settings: dict[str, Any] = {
        "model": model,
        "name": "small",
        "cells": {
            "passkey": cross(**crossed, keeps=["25%"], schedule="once"),
            "lm": cross(**crossed, keeps=["76"], schedule="cap"),
        },
        "asking": Asking(lengths=(76, 80), documents=("A text. " * 100,)),
        "text": "hash",
        "problems": 3,
        "batch": 2,
    }
    return CompressExperiment(**(settings | changed))


@pytest.fixture(scope="module")
def whole(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an experiment that ran in one go."""
    folder = tmp_path_factory.mktemp("compress") / "whole"
    run(experiment(model), folder)
    return folder


def table(folder: Path, name: str) -> list[dict[str, Any]]:
    found = CompressStore(folder).read(name).to_pylist()
    return sorted(found, key=lambda row: (row.get("task", ""), row["length"], row["cell"], row["problem"]))


def test_an_experiment_that_is_broken_off_goes_on(
    model: Any, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, texts = table(whole, "rows"), table(whole, "texts")
    assert len(rows) == 2 * 3 * 4 and len(texts) == 3 * 4
    assert len(CompressStore(whole).read("timings")) == 4 * (2 * 2 + 2)
    real, calls = compress_experiment.answer, 0

    def breaks(*given: Any, **more: Any) -> Any:
        nonlocal calls
        for found in real(*given, **more):
            calls += 1
            if calls == 6:
                raise KeyboardInterrupt
            yield found

    monkeypatch.setattr(compress_experiment, "answer", breaks)
    with pytest.raises(KeyboardInterrupt):
        run(experiment(model), tmp_path / "broken")
    assert CompressStore(tmp_path / "broken").batches() == 5
    shown = []
    run(experiment(model), tmp_path / "broken", progress=shown.append)
    assert table(tmp_path / "broken", "rows") == rows and table(tmp_path / "broken", "texts") == texts
    assert shown[-1].done == shown[-1].total == len(rows) + len(texts) and shown[-1].seconds_left == 0
    before = calls
    run(experiment(model), tmp_path / "broken")
    assert calls == before


def test_cells_and_problems_can_be_added(model: Any, whole: Path, tmp_path: Path) -> None:
    few = {"passkey": cross(orders=["low"], keeps=["25%"], skips=["0"], schedule="once")}
    run(experiment(model, cells=few, problems=1), tmp_path)
    assert len(table(tmp_path, "rows")) == 2 * 2
    run(experiment(model, stride=2), tmp_path)
    assert table(tmp_path, "rows") == table(whole, "rows")
    lm = {"lm": experiment(model).cells["lm"]}
    run(experiment(model, cells=lm), tmp_path)
    strides = [(row["stride"], row["order"]) for row in table(tmp_path, "texts")]
    assert strides.count((2, "low")) == strides.count((1, "low")) == 3 and len(strides) == 3 * (4 + 3)


def test_another_experiment_is_refused(model: Any, tmp_path: Path) -> None:
    few = {"passkey": cross(orders=["low"], keeps=["25%"], skips=["0"], schedule="once")}
    run(experiment(model, cells=few, problems=1), tmp_path)
    with pytest.raises(UsageError, match=r"holds another experiment: settings\.seed: 0 there, 4 now"):
        run(experiment(model, cells=few, asking=Asking(lengths=(80,), seed=4)), tmp_path)


def test_experiments_that_cannot_be_meant(model: Any) -> None:
    with pytest.raises(UsageError, match="skip '7' with 4 layers; name layers 0 to 3, not all of them"):
        experiment(model, cells={"passkey": cross(orders=["low"], keeps=["9"], skips=["7"], schedule="once")})
    with pytest.raises(UsageError, match="problems is 0"):
        experiment(model, problems=0)
    with pytest.raises(UsageError, match=r"keeps no cache of keys and values from token to token"):
        experiment(sl.load("tiny-llada"))


def test_a_result_says_what_the_rows_say(whole: Path) -> None:
    result = summarise(whole)
    assert [(one["task"], one["length"]) for one in result["retrieval"]] == [("passkey", 76), ("passkey", 80)]
    cells = {cell["cell"]: cell for cell in result["retrieval"][1]["cells"]}
    assert list(cells) == ["none", "low:keep=25%,skip=0", "random:keep=25%,skip=0"]
    low = cells["low:keep=25%,skip=0"]
    assert low["kept_share"] == 0.25 and low["cache_share"] == pytest.approx((1 + 3 * 0.25) / 4)
    assert cells["random:keep=25%,skip=0"]["draws"] == 2 and low["problems"] == 3
    rows = [row for row in table(whole, "rows") if row["length"] == 80 and row["order"] == "low"]
    assert low["value"]["value"] == sum(row["score"] for row in rows) / 3
    (text,) = result["language"]
    assert text["length"] == 80 and [cell["kept"] for cell in text["cells"]] == [80, 76, 76]
    assert result["timings"] and result["grids"] == []
