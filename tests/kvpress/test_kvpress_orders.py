"""Orders against kvpress on the same model: kept sets and generated tokens. Run by `make test-kvpress`."""

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl
from sinklens.errors import UsageError

# A part of it: this folder alone would pass as a package of that name.
pytest.importorskip("kvpress.presses", reason="kvpress has an environment of its own: make test-kvpress")
kvpress = import_module("kvpress")
pytestmark = pytest.mark.kvpress

TEXT = (
    "Ada has 3 apples. Ben gives her 4 more apples, and then he takes 2 of them away. Later Cem comes along and brings "
    "a bag of 12 pears. How many apples does Ada have now?"
)


@pytest.fixture(scope="module")
def model() -> Any:
    return sl.load("tiny-llama")


@pytest.fixture(scope="module")
def ids(model: Any) -> Tensor:
    return torch.tensor([model.tokenizer.encode(TEXT)])


def pressed(press: Any, model: Any, ids: Tensor, new: int = 0) -> tuple[Any, list[int]]:
    """The cache after a prefill under a press, and greedy tokens at true positions."""
    from transformers import DynamicCache

    cache, tokens = DynamicCache(), []
    with torch.no_grad():
        with press(model.model):
            out = model.model(ids, past_key_values=cache, use_cache=True)
        for step in range(new):
            tokens.append(int(out.logits[0, -1].argmax()))
            where = torch.tensor([[ids.shape[1] + step]])
            out = model.model(
                torch.tensor([tokens[-1:]]), past_key_values=cache, position_ids=where, cache_position=where[0]
            )
    return cache, tokens


def full_cache(model: Any, ids: Tensor) -> Any:
    with torch.no_grad():
        return model.model(ids, use_cache=True).past_key_values


def kept_by(cache: Any, full: Any) -> list[list[set[int]]]:
    """Which entries of the full cache a cut one holds, found by their keys."""
    found = []
    for cut, whole in zip(cache.layers, full.layers, strict=True):
        same = (cut.keys[0, :, :, None] == whole.keys[0, :, None]).all(-1)
        assert bool((same.sum(-1) == 1).all())
        found.append([set(head.int().argmax(-1).tolist()) for head in same])
    return found


@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.77, 0.9])
@pytest.mark.parametrize("skip", [(), (0, 1)])
def test_kept_sets_and_tokens_agree_with_knorm(model: Any, ids: Tensor, ratio: float, skip: tuple[int, ...]) -> None:
    count = max(1, int(ids.shape[1] * (1 - ratio)))  # kvpress rounds down
    press = kvpress.KnormPress(compression_ratio=ratio)
    if skip:
        ratios = [0.0 if layer in skip else ratio for layer in range(model.spec.layers)]
        press = kvpress.PerLayerCompressionPress(press, ratios)
    _, tokens = pressed(press, model, ids, new=12)
    cache, _ = pressed(press, model, ids)
    with sl.compress(model, sl.Compression(order="low", keep=count, skip=skip)) as cut:
        out = sl.generate(model, ids, sl.AutoregressiveSampler(length=12))
    written = out.ids[0, ids.shape[1] :][: int(out.lengths[0])].tolist()
    assert tokens[: len(written)] == written
    assert len(written) > 2
    full = full_cache(model, ids)
    for layer, heads in enumerate(kept_by(cache, full)):
        size = ids.shape[1] if layer in skip else count
        norms = full.layers[layer].keys[0].norm(dim=-1)
        for head, positions in enumerate(heads):
            ours = set(cut.kept[layer][0, head, :size].tolist())
            assert len(positions) == len(ours) == size
            # Equal ids have equal norms in layer 0, and top-k takes any of them; we take the first.
            apart = norms[head, sorted(positions ^ ours)]
            assert layer == 0 or not apart.numel()
            assert bool((apart == apart[:1]).all())


@pytest.mark.parametrize("ratio", [0.5, 0.9])
def test_our_press_is_knorm_with_layers_skipped(model: Any, ids: Tensor, ratio: float) -> None:
    from sinklens.cache.kvpress import press_of

    full = full_cache(model, ids)
    theirs, _ = pressed(kvpress.KnormPress(compression_ratio=ratio), model, ids)
    ours, _ = pressed(press_of("low", compression_ratio=ratio, skip=()), model, ids)
    assert kept_by(ours, full) == kept_by(theirs, full)
    skipped, _ = pressed(press_of("low", compression_ratio=ratio, skip=(0, 1)), model, ids)
    assert kept_by(skipped, full)[2:] == kept_by(theirs, full)[2:]
    assert [layer.keys.shape[2] for layer in skipped.layers[:2]] == [ids.shape[1]] * 2


@pytest.mark.parametrize(
    ("order", "name"), [("keydiff", "KeyDiffPress"), ("streaming", "StreamingLLMPress"), ("low", "KnormPress")]
)
def test_orders_are_those_of_kvpress(model: Any, ids: Tensor, order: str, name: str) -> None:
    from sinklens.cache.kvpress import press_of

    full = full_cache(model, ids)
    theirs, _ = pressed(getattr(kvpress, name)(compression_ratio=0.6), model, ids)
    ours, _ = pressed(press_of(order, compression_ratio=0.6, skip=()), model, ids)
    assert kept_by(ours, full) == kept_by(theirs, full)


def test_expected_attention_keeps_what_kvpress_keeps(model: Any, ids: Tensor) -> None:
    count = int(ids.shape[1] * 0.5)
    theirs, _ = pressed(kvpress.ExpectedAttentionPress(compression_ratio=0.5), model, ids)
    heads = kept_by(theirs, full_cache(model, ids))
    with sl.compress(model, sl.Compression(order="expected", keep=count, skip=())) as cut:
        sl.generate(model, ids, sl.AutoregressiveSampler(length=1))
    for layer in range(model.spec.layers):
        for head, positions in enumerate(heads[layer]):
            assert set(cut.kept[layer][0, head].tolist()) == positions, (layer, head)


def test_received_is_observed_attention(ids: Tensor) -> None:
    from sinklens.models.load import load

    eager = load("tiny-llama", attn_implementation="eager")
    count = int(ids.shape[1] * 0.5)
    from transformers import DynamicCache

    cache = DynamicCache()
    with torch.no_grad(), kvpress.ObservedAttentionPress(compression_ratio=0.5)(eager.model):
        eager.model(ids, past_key_values=cache, use_cache=True, output_attentions=True)
    heads = kept_by(cache, full_cache(eager, ids))
    with sl.compress(eager, sl.Compression(order="received", keep=count, skip=())) as cut:
        sl.generate(eager, ids, sl.AutoregressiveSampler(length=1))
    for layer, found in enumerate(heads):
        for head, positions in enumerate(found):
            assert set(cut.kept[layer][0, head].tolist()) == positions, (layer, head)


def test_a_press_is_an_order(model: Any, ids: Tensor) -> None:
    from sinklens.cache.kvpress import from_press

    runs = []
    for order in ("low", from_press(kvpress.KnormPress())):
        with sl.compress(model, sl.Compression(order=order, keep=9)) as cut:
            runs.append((sl.generate(model, ids, sl.AutoregressiveSampler(length=6)).ids.tolist(), cut.kept))
    assert runs[0][0] == runs[1][0]
    assert all(torch.equal(a, b) for a, b in zip(runs[0][1], runs[1][1], strict=True))


def test_what_cannot_be_done_is_said(model: Any, ids: Tensor) -> None:
    from sinklens.cache.kvpress import from_press, press_of

    with pytest.raises(UsageError, match="is no kvpress ScorerPress"):
        from_press("knorm")
    for order, words in (("received", "attention weights"), ("expected", "the queries"), ("fastgen", "token ids")):
        with pytest.raises(UsageError, match=words):
            press_of(order)
    order = from_press(kvpress.SnapKVPress())
    with (
        pytest.raises(UsageError, match="SnapKVPress of kvpress asks for more than keys and values"),
        sl.compress(model, sl.Compression(order=order, keep=9)),
    ):
        sl.generate(model, ids, sl.AutoregressiveSampler(length=2))
    padded = [ids[0].tolist(), ids[0, :-3].tolist()]
    with (
        pytest.raises(UsageError, match="does not know padding"),
        sl.compress(model, sl.Compression(order=from_press(kvpress.KnormPress()), keep=9)),
    ):
        sl.generate(model, padded, sl.AutoregressiveSampler(length=2))


def test_counts_floor_against_ceil() -> None:
    """The same ratio is another count: a share is rounded up here, kvpress rounds down."""
    from sinklens.cache.settings import parse_keep

    assert kvpress.utils.compute_n_kept(13, 0.5) == 6
    assert parse_keep("50%", 13) == 7
