"""Model code outside transformers that asks for transformers' attention by its name: the numbers of its own classes."""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, LlamaConfig
from transformers.models.llama import modeling_llama

import sinklens as sl

ASKED = r"ALL_ATTENTION_FUNCTIONS\.get_interface\(\s*self\.config\._attn_implementation, eager_attention_forward\s*\)"
IDS, PADDING = torch.tensor([[1, 2, 3, 4, 5], [0, 0, 6, 7, 8]]), torch.tensor([[1] * 5, [0, 0, 1, 1, 1]])


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A copy of Llama as code of earlier versions is written."""
    source, found = re.subn(
        ASKED, "ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]", inspect.getsource(modeling_llama)
    )
    if not found:
        pytest.skip("this transformers asks for attention in another way")
    source = source.replace("from ...", "from transformers.")
    source = source.replace("from .configuration_llama", "from transformers.models.llama.configuration_llama")
    (tmp_path / "llama_of_ones_own.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    import llama_of_ones_own  # type: ignore[import-not-found]

    yield llama_of_ones_own
    del sys.modules["llama_of_ones_own"]


def goes_on(model: Any) -> tuple[Any, torch.Tensor]:
    """What is seen of one more token behind a padded batch, and its logits."""
    with torch.no_grad():
        past = model(IDS, attention_mask=PADDING, use_cache=True).past_key_values
        longer = torch.cat([PADDING, torch.ones(2, 1, dtype=PADDING.dtype)], dim=1)
        given = {"attention_mask": longer, "past_key_values": past, "use_cache": True}
        with sl.observe(model, attention_mask=longer) as seen:
            logits = model(torch.tensor([[9], [10]]), **given).logits
    return seen, logits


def test_one_more_token_behind_a_padded_batch(outside: ModuleType) -> None:
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=50, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(0)
    ours = outside.LlamaForCausalLM(config).eval()
    theirs = modeling_llama.LlamaForCausalLM(config).eval()
    theirs.load_state_dict(ours.state_dict())
    (seen, logits), (expected, others) = goes_on(ours), goes_on(theirs)
    assert torch.equal(logits, others) and seen.received.shape == (2, 2, 4, 6)
    assert [record.queries for record in seen.calls] == [1, 1]
    for name in ("received", "contribution"):
        torch.testing.assert_close(getattr(seen, name), getattr(expected, name))
    with sl.intervene(ours, lambda call: call.keep_keys(call.key.new_ones(call.key.shape[2]).bool().cumsum(0) > 1)):
        goes_on(ours)


def test_nothing_stays_behind() -> None:
    """Not even where a function was inherited before."""
    stepped_in = ("get_interface", "__getitem__")
    before = [vars(AttentionInterface).get(name) for name in stepped_in]
    model = modeling_llama.LlamaForCausalLM(
        LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, vocab_size=50)
    )
    with sl.observe(model), sl.observe(model):
        model(IDS)
    assert [vars(AttentionInterface).get(name) for name in stepped_in] == before
