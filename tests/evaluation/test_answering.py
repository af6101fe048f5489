"""Problems answered under a condition: rows, samplers, and draws that belong to their problem."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl
from interventions.rankings import ranking
from sinklens.errors import UsageError
from sinklens.evaluation import answering as module
from sinklens.evaluation.answering import (
    ROW,
    Answering,
    answer_batch,
    answer_problems,
    by_length,
    problems,
    sampler_of,
)
from sinklens.evaluation.conditions import Condition, parse_condition
from sinklens.interventions import random_keys
from sinklens.interventions.draws import noise
from sinklens.interventions.ranking import Ranking
from sinklens.tasks.item import Item

SHORT = Answering(task="word_problems", length=4, steps=2)


@pytest.fixture(scope="module")
def llama() -> Any:
    return sl.load("tiny-llama")


@pytest.fixture(scope="module")
def llada() -> Any:
    return sl.load("tiny-llada")


def written(model: Any, prompts: Sequence[str], texts: dict[str, str]) -> sl.Generation:
    """As if a model had written these texts after the prompts."""
    ids = torch.zeros((len(prompts), 8), dtype=torch.int64)
    lengths = torch.tensor([len(texts[prompt]) for prompt in prompts])
    text = [texts[prompt] for prompt in prompts]
    return sl.Generation(ids=ids, canvases=None, lengths=lengths, text=text, steps=3, prompt_length=4)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Problem 1 is answered wrong, the others as the task does; the prompts of every batch."""
    items = problems(SHORT, 5)
    texts = {item.prompt: item.answer if item.index != 1 else "#### 12345" for item in items}
    asked: list[list[str]] = []

    def generate(model: Any, prompts: list[str], sampler: Any, *, graph: bool) -> sl.Generation:
        assert not graph
        asked.append(prompts)
        return written(model, prompts, texts)

    monkeypatch.setattr(module, "generate", generate)
    return asked


def test_a_row_says_what_was_asked_done_and_written(scripted: Any, llada: Any) -> None:
    items = problems(SHORT, 3)
    rows = answer_problems(llada, items, Condition(), SHORT)
    assert [list(row) for row in rows] == [list(ROW)] * 3
    assert [row["right"] for row in rows] == [True, False, True]
    assert [json.loads(row["grades"]) for row in rows] == [{"right": True}, {"right": False}, {"right": True}]
    first = rows[0]
    assert (first["model"], first["causal"], first["task"], first["split"]) == (
        "tiny-llada",
        False,
        *("word_problems", "test"),
    )
    assert (first["prompt"], first["answer"], first["text"]) == (items[0].prompt, items[0].answer, items[0].answer)
    assert (first["condition"], first["choose"], first["top"], first["dose"]) == ("none", "none", None, None)
    assert (first["problem"], first["tokens"], first["steps"]) == (0, len(items[0].answer), 3)
    assert first["keys_removed"] is None and first["draw"] == 0 and first["act"] == "mask"


def test_rows_come_in_the_order_of_the_problems_whatever_the_batches(scripted: list[list[str]], llada: Any) -> None:
    items = problems(SHORT, 5)
    rows = answer_problems(llada, items[::-1], Condition(), replace(SHORT, batch=2), name="mine")
    assert [row["problem"] for row in rows] == [4, 3, 2, 1, 0]
    assert [row["right"] for row in rows] == [True, True, True, False, True]
    assert {row["model"] for row in rows} == {"mine"}
    assert [len(prompts) for prompts in scripted] == [2, 2, 1]
    lengths = [len(prompt) for prompts in scripted for prompt in prompts]
    assert lengths == sorted(lengths)


def test_batches_hold_prompts_of_similar_length() -> None:
    items = [
        Item(task="t", split="s", index=n, template="", prompt="x" * size, answer="")
        for n, size in enumerate((5, 1, 9, 2))
    ]
    assert list(by_length(items, 2)) == [[1, 3], [0, 2]]


def test_a_masked_cell_has_a_dose_and_its_number_of_keys(llada: Any) -> None:
    answered = answer_batch(llada, problems(SHORT, 2), parse_condition("sinks:top=2"), SHORT, follow=True)
    row = answered.rows[0]
    assert row["keys_removed"] == 2.0 and 0.5 < row["dose"] <= 1.0
    assert (row["choose"], row["top"], row["epsilon"], row["steps"]) == ("sinks", 2, None, 2)
    assert answered.seconds > 0
    assert len(answered.flows) == llada.spec.layers  # two steps, of which the first masks nothing
    shown = answer_batch(llada, problems(SHORT, 1), parse_condition("sinks:epsilon=3,act=zero"), SHORT).rows[0]
    assert (shown["epsilon"], shown["act"], shown["top"]) == (3.0, "zero", None)


def test_samplers_of_the_families_and_the_cache(llama: Any, llada: Any) -> None:
    eight = Answering(task="word_problems", length=8, steps=4, block=4, threshold=None)
    assert sampler_of(llama, eight) == sl.AutoregressiveSampler(length=8)
    assert sampler_of(llama, eight, parse_condition("sinks:top=1,keys=cached")) == sl.AutoregressiveSampler(length=8)
    without = sl.AutoregressiveSampler(length=8, cache=False)
    assert sampler_of(llama, eight, parse_condition("sinks:top=1,keys=recomputed")) == without
    assert sampler_of(llama, eight, parse_condition("random:top=1,queries=all")) == without
    blocks = sl.LLaDASampler(steps=4, length=8, block=4)
    assert sampler_of(llada, eight) == blocks
    assert sampler_of(llada, eight, parse_condition("sinks:top=1,keys=recomputed")) == blocks
    quick = Answering(task="word_problems", length=8, threshold=0.9, stop_at_eos=True)
    assert sampler_of(llada, quick) == sl.LLaDASampler(steps=8, length=8, block=8, threshold=0.9, stop_at_eos=True)
    with pytest.raises(UsageError, match=r"threshold=0.9 is for LLaDA and MMaDA, but the family is 'llama'"):
        sampler_of(llama, quick)


def test_without_a_cache_the_answer_is_the_same(llama: Any) -> None:
    prompts = [item.prompt for item in problems(SHORT, 2)]
    cached, anew = (
        sl.generate(llama, prompts, sl.AutoregressiveSampler(length=6, cache=cache)) for cache in (True, False)
    )
    assert cached.text == anew.text


def test_recomputed_keys_run_on_a_causal_model(llama: Any) -> None:
    row = answer_batch(llama, problems(SHORT, 1), parse_condition("sinks:top=1,keys=recomputed"), SHORT).rows[0]
    assert row["keys"] == "recomputed" and row["causal"] and row["dose"] > 0


def test_what_cannot_be_answered_is_refused(llama: Any, golden: Any) -> None:
    with pytest.raises(UsageError, match="unknown task 'sums'; expected one of"):
        Answering(task="sums")
    with pytest.raises(UsageError, match="batch is 0"):
        Answering(task="word_problems", batch=0)
    with pytest.raises(UsageError, match="with task 'word_problems', whose problems are made by rule"):
        Answering(task="word_problems", data="somewhere")
    with pytest.raises(UsageError, match="has no tokenizer; a task needs one"):
        answer_batch(sl.load(golden / "llada"), problems(SHORT, 1), Condition(), SHORT)


def test_a_fingerprint_is_of_what_decides_rows() -> None:
    same = (replace(SHORT, batch=3), replace(SHORT, unsafe=True))
    other = (
        replace(SHORT, length=5),
        replace(SHORT, seed=1),
        replace(SHORT, split="train"),
        replace(SHORT, task="passkey"),
    )
    assert {one.fingerprint for one in same} == {SHORT.fingerprint}
    assert len({one.fingerprint for one in other} | {SHORT.fingerprint}) == 5


# ------------------------------------------------------------------------------------------------------------- draws


def behind_padding(rows: int, padding: Sequence[int], keys: int) -> Ranking:
    some = ranking(rows=rows, heads=3, keys=keys)
    real = torch.arange(keys) >= torch.tensor(padding)[:, None]
    return replace(some, candidates=real[:, None])


def test_a_row_has_the_draws_of_its_seed_at_any_place_and_behind_any_padding() -> None:
    alone = noise(behind_padding(1, [0], 6), (11,))
    beside = noise(behind_padding(3, [4, 0, 2], 10), (11, 12, 13))
    assert torch.equal(beside[0, :, 4:], alone[0])
    moved = noise(behind_padding(2, [1, 4], 10), (12, 11))
    assert torch.equal(moved[1, :, 4:], alone[0])
    assert torch.equal(moved[0, :, 1:], beside[1, :, :9])
    assert not torch.equal(beside[2, :, 2:8], alone[0])


def test_a_seed_for_each_row_and_no_other_number_of_them() -> None:
    with pytest.raises(UsageError, match="seed has 2 entries, but the batch has 3 rows; give one for each"):
        noise(behind_padding(3, [0, 0, 0], 4), (1, 2))
    with pytest.raises(UsageError, match=r"seed is \(1, 'a'\); expected an integer, or a tuple of integers"):
        sl.RandomKeys(top=1, seed=(1, "a"))
    with pytest.raises(UsageError, match=r"seed is \(\); expected an integer"):
        sl.RandomKeys(top=1, seed=())


def test_draws_are_even_and_independent_of_each_other() -> None:
    drawn = noise(ranking(rows=8, heads=8, keys=512), tuple(range(8))).double()
    assert drawn.dtype == torch.float64 and drawn.min() >= 0 and drawn.max() < 1
    count = drawn.numel()
    assert abs(float(drawn.mean()) - 0.5) < 5 * (1 / 12 / count) ** 0.5
    shares = torch.histc(drawn, bins=16, min=0, max=1) / count
    assert float((shares - 1 / 16).abs().max()) < 5 * (15 / 256 / count) ** 0.5
    for axis in range(3):  # rows, heads, keys: neighbours tell nothing about each other
        one, other = drawn.narrow(axis, 0, drawn.shape[axis] - 1), drawn.narrow(axis, 1, drawn.shape[axis] - 1)
        together = float(((one - 0.5) * (other - 0.5)).mean() * 12)
        assert abs(together) < 5 / one.numel() ** 0.5


@pytest.mark.parametrize("name", ["llama", "llada"])
def test_a_problem_has_the_same_draws_alone_and_among_others(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = request.getfixturevalue(name)
    seen: list[Tensor] = []

    def spy(some: Ranking, seed: Any) -> Tensor:
        seen.append(noise(some, seed))
        return seen[-1]

    monkeypatch.setattr(random_keys, "noise", spy)
    condition, items = parse_condition("random:top=2,draw=3"), problems(SHORT, 5)
    runs = []
    for some in ([items[1]], [items[n] for n in (4, 2, 1, 0, 3)]):
        seen.clear()
        answer_batch(model, some, condition, SHORT)
        runs.append(list(seen))
    alone, among = runs
    assert len({len(item.prompt) for item in items}) > 1  # so that there is padding
    assert len(alone) == len(among) >= model.spec.layers
    for one, all_rows in zip(alone, among, strict=True):
        keys = one.shape[-1]
        assert torch.equal(all_rows[2, :, -keys:], one[0])


def test_data_count_by_their_content(tmp_path: Path) -> None:
    rows = '{"question": "How many?", "answer": "#### 1"}\n'
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "test.jsonl").write_text(rows)
    one, other = (Answering(task="gsm8k", data=str(tmp_path / folder)) for folder in ("one", "other"))
    assert one.fingerprint == other.fingerprint
    (tmp_path / "other" / "test.jsonl").write_text(rows * 2)
    assert one.fingerprint != other.fingerprint
    file = Answering(task="gsm8k", data=str(tmp_path / "one" / "test.jsonl"))
    before = file.fingerprint
    (tmp_path / "one" / "train.jsonl").write_text(rows)  # the examples come from it
    assert file.fingerprint != before


def test_the_batch_decides_where_rows_wait_for_each_other() -> None:
    assert replace(SHORT, batch=2).fingerprint == SHORT.fingerprint
    waiting = replace(SHORT, threshold=0.9)
    assert replace(waiting, batch=2).fingerprint != waiting.fingerprint


def test_examples_are_for_prompts_that_have_them() -> None:
    with pytest.raises(UsageError, match="shots=3 with task 'humaneval', whose prompts have none; leave it out"):
        Answering(task="humaneval", data="x", shots=3)


def test_steps_are_graphs_where_they_can_be(monkeypatch: pytest.MonkeyPatch, llada: Any) -> None:
    asked: list[bool] = []

    def generate(model: Any, prompts: list[str], sampler: Any, *, graph: bool) -> sl.Generation:
        asked.append(graph)
        return written(model, prompts, dict.fromkeys(prompts, "#### 1"))

    monkeypatch.setattr(module, "generate", generate)
    quick = replace(SHORT, graph=True)
    for condition in (Condition(), Condition(choose="sinks", top=1), Condition(choose="sinks", epsilon=3.0)):
        answer_problems(llada, problems(SHORT, 1), condition, quick)
    answer_problems(sl.load("tiny-llama"), problems(SHORT, 1), Condition(), quick)
    assert asked == [True, True, False, False]
    assert quick.fingerprint == SHORT.fingerprint


def test_a_graph_needs_a_card(llada: Any) -> None:
    with pytest.raises(UsageError, match="graph=True on cpu"):
        answer_problems(llada, problems(SHORT, 1), Condition(), replace(SHORT, graph=True))
