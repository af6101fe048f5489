"""The embedded checkpoints: what they are, that plain transformers reads one of them, and what their cards say."""

import json
from itertools import islice
from pathlib import Path

import pytest
import torch

import sinklens as sl
from sinklens.errors import UsageError
from sinklens.models.catalog import EMBEDDED, ZOO
from sinklens.tasks import task
from sinklens.training.cards import main as write_cards
from sinklens.training.cards import model_card, pages
from sinklens.training.evaluate import held_out_rows
from sinklens.training.measure import answering, autoregressive_sinks, diffusion_sinks, half_written
from sinklens.training.recipe import read_recipe

NAMES = ("tiny-llama", "tiny-llada", "tiny-dream")


def card(name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((ZOO / EMBEDDED[name] / "card.json").read_text())
    return found


def test_the_zoo_is_small() -> None:
    assert tuple(EMBEDDED) == NAMES
    weights = [(ZOO / EMBEDDED[name] / "model.safetensors").stat().st_size for name in NAMES]
    assert max(weights) <= 13e6
    folders = [ZOO / EMBEDDED[name] for name in NAMES]
    assert sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file()) <= 40e6
    assert sum(path.stat().st_size for path in ZOO.rglob("*") if path.is_file()) <= 43e6  # with the selector


@pytest.mark.parametrize("name", NAMES)
def test_each_is_what_its_recipe_makes(name: str) -> None:
    model = sl.load(name)
    assert next(model.parameters()).dtype == torch.float32
    assert 5e6 <= sum(parameter.numel() for parameter in model.parameters()) <= 6.5e6
    recipe, training = read_recipe(name), json.loads((ZOO / name / "training.json").read_text())
    assert training["fingerprint"] == recipe.fingerprint
    assert training["step"] == recipe.schedule.steps
    assert (model.spec.layers, model.spec.heads, model.spec.width) == (8, 4, 256)
    assert (model.spec.bos_id, model.spec.eos_id, model.spec.pad_id) == (0, 1, 3)
    assert model.spec.mask_id == (None if model.spec.causal else 2)
    assert model.spec.source == name


def test_all_have_one_tokenizer() -> None:
    tokenizers = [sl.load(name).tokenizer for name in NAMES]
    text = "Question: 12 apples\n    return x ** 2  # naïve ☃"
    encoded = [tokenizer.encode(text) for tokenizer in tokenizers]
    assert encoded[0] == encoded[1] == encoded[2]
    assert encoded[0][0] == 0
    assert [tokenizer.decode(encoded[0], skip_special_tokens=True) for tokenizer in tokenizers] == [text] * 3
    assert all(tokenizer.mask_token_id == 2 for tokenizer in tokenizers)


def test_plain_transformers_computes_the_same_logits() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = ZOO / "tiny-llama"
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([AutoTokenizer.from_pretrained(folder).encode("The function returns a list of")])
    model = sl.load("tiny-llama")
    with torch.no_grad():
        assert torch.equal(plain(ids).logits, model(ids))
        half = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        assert torch.equal(half(ids).logits, sl.load("tiny-llama", dtype="bfloat16")(ids))


def test_the_sinks_are_those_of_the_cards() -> None:
    llama = sl.load("tiny-llama")
    found = autoregressive_sinks(llama, held_out_rows(llama.tokenizer, 64))
    stored = card("tiny-llama")["sinks"]["forward"]  # type: ignore[index]
    for kind in ("text", "random"):
        assert found[kind]["largest"] == pytest.approx(stored[kind]["largest"], abs=0.01)
        assert found[kind]["upper_heads_above_0.3"] == pytest.approx(stored[kind]["upper_heads_above_0.3"], abs=0.07)
        assert stored[kind]["upper_heads_above_0.3"] >= 1 / 3
    for name in NAMES[1:]:
        model = sl.load(name)
        rows = half_written(held_out_rows(model.tokenizer, 192), mask_id=2, prompt=64)
        measured = diffusion_sinks(model, rows, batch=16)
        written = card(name)["sinks"]["forward"]  # type: ignore[index]
        assert measured["sink_share"] == pytest.approx(written["sink_share"], abs=5e-4)
        assert measured["largest"] == pytest.approx(written["largest"], abs=5e-3)
        assert 0.005 <= measured["sink_share"] <= 0.06
        strong = measured["upper_heads_above_0.1"]
        assert strong >= 0.25 if name == "tiny-dream" else strong == 0  # from scratch: none, see LOG.md


@pytest.mark.parametrize("name", NAMES)
def test_it_solves_problems(name: str) -> None:
    """Four of the first five, which its card would call a bad day."""
    model, words = sl.load(name), task("word_problems")
    items = list(islice(words.items("test"), 5))
    out = sl.generate(model, [item.prompt for item in items], answering(model))
    assert out.text is not None
    assert sum(words.grade(item, text) for item, text in zip(items, out.text, strict=True)) >= 4


def test_the_cards_are_current() -> None:
    for path, text in pages().items():
        assert path.read_text("utf-8") == text, f"{path.name} is stale: python -m sinklens.training.cards"


def test_cards_are_written_of_the_embedded_models_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="unknown embedded model 'runs/mine'; expected one of 'tiny-llama', "):
        model_card("runs/mine")
    with pytest.raises(SystemExit, match="2"):
        write_cards(["runs/mine"])
    assert "runs/mine: nothing is taken; this writes the cards of tiny-llama, tiny-llada" in capsys.readouterr().err


def test_held_out_text_is_long_enough() -> None:
    rows = held_out_rows(sl.load("tiny-llama").tokenizer, 192)
    assert rows.shape == (64, 192)
    lines = Path(ZOO.parent / "training" / "held_out.jsonl").read_text("utf-8").splitlines()
    assert all(json.loads(line).keys() == {"text", "source", "licence"} for line in lines)
