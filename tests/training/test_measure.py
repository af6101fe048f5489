"""What a card says, on arrays and models whose answer is known."""

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

import sinklens as sl
from sinklens.errors import UsageError
from sinklens.tasks import task
from sinklens.training.evaluate import evaluate, held_out_rows
from sinklens.training.measure import (
    SinkTally,
    accuracy,
    answering,
    answers,
    autoregressive_sinks,
    diffusion_sinks,
    generation_sinks,
    graded,
    half_written,
    random_rows,
    upper_half,
)

GOLDEN = Path(__file__).parents[1] / "data" / "golden"


class Letters:
    """A tokenizer as far as the tally asks for one."""

    def decode(self, ids: list[int]) -> str:
        return chr(ids[0])


def test_a_tally_counts_sinks_tops_and_tokens() -> None:
    received = torch.ones(2, 1, 1, 20)  # two layers, one row, one head
    received[1, 0, 0, 4] += 8.0
    received[1, 0, 0] *= 20 / received[1, 0, 0].sum()
    canvas = torch.full((1, 20), ord("a"))
    canvas[0, 4] = ord("z")
    tally = SinkTally()
    tally.add(received, canvas)
    found = tally.summary(Letters())
    assert found["sink_share"] == pytest.approx(1 / 40)
    assert found["sink_tokens"]["z"] == 1.0
    assert found["top_mass"] == [[pytest.approx(0.05)], [pytest.approx(9 / 28, abs=1e-4)]]
    assert found["upper_heads_above_0.1"] == 1.0


def test_canvases_go_from_few_masks_to_all() -> None:
    rows = torch.randint(4, 100, (200, 80), generator=torch.Generator().manual_seed(0))
    canvases = half_written(rows, mask_id=2, prompt=30)
    masked = canvases == 2
    assert not masked[:, :30].any()
    assert torch.equal(canvases[~masked], rows[~masked])
    shares = masked[:, 30:].float().mean(dim=1)
    np.testing.assert_allclose(shares.numpy(), (np.arange(200) + 0.5) / 200, atol=0.25)


def test_random_rows_begin_with_bos_and_hold_no_other_special_token() -> None:
    rows = random_rows(100, bos_id=0, rows=50, length=40)
    assert bool((rows[:, 0] == 0).all())
    assert int(rows[:, 1:].min()) >= 4
    assert int(rows.max()) < 100


def test_the_upper_half_is_the_deeper_one() -> None:
    np.testing.assert_array_equal(upper_half(np.arange(8.0).reshape(4, 2)), [[4, 5], [6, 7]])


def test_the_first_token_of_a_causal_model_is_what_observe_says() -> None:
    model = sl.load("tiny-llama")
    rows = held_out_rows(model.tokenizer, 16)[:4]
    found = autoregressive_sinks(model, rows)
    with torch.no_grad(), sl.observe(model) as seen:
        model(rows)
    expected = seen.received[..., 0].mean(dim=1) / 16  # every query sees position 0
    np.testing.assert_allclose(found["text"]["first_token_mass"], expected.numpy(), atol=1e-4)
    assert found["text"]["largest"] == pytest.approx(float(expected[4:].max()), abs=1e-6)


def test_generation_measures_every_step_on_its_own_canvas() -> None:
    """With one step, the canvas is the prompt and masks: what a single forward says."""
    model = sl.load("tiny-llada")
    prompts = held_out_rows(model.tokenizer, 8)[:2]
    canvas = torch.cat([prompts, torch.full((2, 24), 2)], dim=1)
    forward = diffusion_sinks(model, canvas)
    tally = SinkTally()
    with sl.observe(model, norms=False) as seen:
        out = sl.generate(model, prompts, answering(model, length=24))
    for number, step in enumerate(seen.steps):
        tally.add(step.received, out.canvases[number])
    found = generation_sinks(model, prompts, length=24, batch=1)
    assert (found["prompts"], found["tokens"]) == (2, 32)
    assert found["sink_share"] == pytest.approx(tally.summary(model.tokenizer)["sink_share"], abs=1e-6)
    np.testing.assert_allclose(tally.tops[0].mean(axis=1), forward["top_mass"], atol=1e-4)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-llada", "tiny-dream"])
def test_answers_do_not_depend_on_the_batch(name: str) -> None:
    model = sl.load(name)
    items = list(islice(task("word_problems").items("templates"), 3))
    sampler = answering(model, length=16)
    together = answers(model, items, sampler=sampler, batch=3)
    assert together == answers(model, items, sampler=sampler, batch=1)
    assert len(set(together)) > 1


def test_right_answers_are_counted() -> None:
    items = list(islice(task("word_problems").items("templates"), 4))
    texts = [items[0].answer, "#### nothing", items[2].answer, ""]
    assert graded("word_problems", items, texts) == [True, False, True, False]
    programs = list(islice(task("small_programs").items("templates"), 2))
    assert graded("small_programs", programs, [programs[0].answer, ""], unsafe=True) == [True, False]


def test_a_model_without_a_tokenizer_cannot_do_tasks() -> None:
    with pytest.raises(UsageError, match="has no tokenizer; a task needs one"):
        accuracy(sl.load(GOLDEN / "llada"), "word_problems", split="templates", count=1)


def test_samplers_follow_the_family() -> None:
    assert answering(sl.load("tiny-llama"), length=20) == sl.AutoregressiveSampler(length=20)
    assert answering(sl.load("tiny-llada"), length=64, steps=16) == sl.LLaDASampler(steps=16, length=64, block=64)
    assert answering(sl.load("tiny-llada"), length=20) == sl.LLaDASampler(steps=20, length=20, block=20)
    assert answering(sl.load("tiny-dream"), length=20) == sl.DreamSampler(steps=20, length=20, alg="entropy")


def test_a_card_grows_measurement_by_measurement() -> None:
    cards = evaluate(sl.load("tiny-llama"), problems=1, batch=1, unsafe=True)
    first = json.dumps(next(cards))
    assert json.loads(first)["tasks"] == []
    second = next(cards)
    assert [row["task"] for row in second["tasks"]] == ["word_problems"]
    assert second["tasks"][0]["problems"] == 1
