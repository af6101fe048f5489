"""The network that is trained computes what the checkpoint computes once it is loaded."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import sinklens as sl
from sinklens.errors import ModelError
from sinklens.training.checkpoint import read_state, read_weights, write_checkpoint
from sinklens.training.network import Network
from training.small import TOKENIZER, small_recipe


def network_of(family: str, *, seed: int) -> Network:
    recipe = small_recipe(family)
    network = Network(recipe.shape.transformer(family), causal=recipe.causal, seed=seed)
    with torch.no_grad():
        for parameter in network.parameters():  # biases and norms too, rounded as they are on disk
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)), alpha=0.1)
            parameter.copy_(parameter.bfloat16())
    return network


@pytest.mark.parametrize("family", ["llama", "llada", "dream"])
def test_a_written_checkpoint_computes_the_same_logits(family: str, tmp_path: Path) -> None:
    network, recipe = network_of(family, seed=1), small_recipe(family)
    write_checkpoint(network, tmp_path, recipe, tokenizer=TOKENIZER, state={"step": 7})
    model = sl.load(tmp_path, dtype="float32")
    ids = torch.randint(0, 4096, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = F.linear(network(ids, network.rotation(20)), network.embed.weight)
        torch.testing.assert_close(model(ids), expected, rtol=1e-5, atol=1e-5)
    state = read_state(tmp_path)
    assert state is not None
    assert (state["step"], state["fingerprint"]) == (7, recipe.fingerprint)
    assert (model.spec.family, model.spec.causal, model.spec.shift) == (family, family == "llama", family == "dream")
    again = Network(recipe.shape.transformer(family), causal=recipe.causal, seed=0)
    read_weights(again, tmp_path, recipe)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), network.parameters(), strict=True))


def test_dream_starts_from_llama_and_keeps_its_own_biases(tmp_path: Path) -> None:
    llama = network_of("llama", seed=1)
    write_checkpoint(llama, tmp_path, small_recipe("llama"), tokenizer=TOKENIZER, state={"step": 1})
    recipe = small_recipe("dream")
    dream = Network(recipe.shape.transformer("dream"), causal=False, seed=3)
    read_weights(dream, tmp_path, recipe)
    assert torch.equal(dream.embed.weight, llama.embed.weight)
    assert torch.equal(
        dream.get_parameter("blocks.1.attention.k.weight"), llama.get_parameter("blocks.1.attention.k.weight")
    )
    assert not dream.get_parameter("blocks.1.attention.k.bias").any()


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    write_checkpoint(
        network_of("llama", seed=1), tmp_path, small_recipe("llama"), tokenizer=TOKENIZER, state={"step": 1}
    )
    other = small_recipe("llama", shape={"layers": 2, "width": 64, "heads": 2, "mlp_width": 48})
    with pytest.raises(ModelError, match=r"has no .* of the recipe's shape; start from one of the same shape"):
        read_weights(Network(other.shape.transformer("llama"), causal=True, seed=0), tmp_path, other)


def test_a_causal_network_does_not_look_ahead_and_another_does() -> None:
    ids = torch.randint(0, 4096, (1, 12), generator=torch.Generator().manual_seed(0))
    changed = ids.clone()
    changed[0, -1] += 1
    for family, same in (("llama", True), ("llada", False)):
        network = network_of(family, seed=2)
        with torch.no_grad():
            before, after = (network(x, network.rotation(12))[0, :-1] for x in (ids, changed))
        assert torch.equal(before, after) is same


def test_the_seed_decides_the_weights() -> None:
    first, again, other = (
        Network(small_recipe("llada").shape.transformer("llada"), causal=False, seed=seed) for seed in (5, 5, 6)
    )
    assert torch.equal(first.embed.weight, again.embed.weight)
    assert not torch.equal(first.embed.weight, other.embed.weight)
