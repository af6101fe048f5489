"""The next query's attention beside key norms, and the probe of peaked dimensions, against whole maps made plainly."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import sinklens as sl
from sampling.tiny_causal import tiny_causal
from sinklens.errors import UsageError
from sinklens.evaluation.key_norms import HEADS, Looked, head_rows, layer_rows, look
from sinklens.evaluation.peaks import PEAKS, Probe, choose_entries, probe_chunk
from sinklens.sinks.detect import MIN_VIEWERS

N = 40


@pytest.fixture(scope="module")
def model():
    return sl.wrap(tiny_causal("llama").double())


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return torch.randint(1, 64, (N,), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def looked(model, ids) -> Looked:
    return look(model, ids)


def whole(model, ids: torch.Tensor) -> tuple[np.ndarray, list[np.ndarray], int]:
    """Maps [layer, head, query, key] of the chunk and its likeliest next token, the cached keys, and that token."""
    eager = tiny_causal("llama", attn_implementation="eager").double()
    eager.load_state_dict(model.model.state_dict())
    with torch.no_grad():
        token = int(eager(ids[None]).logits[0, -1].argmax())
        out = eager(torch.cat([ids, torch.tensor([token])])[None], output_attentions=True, use_cache=True)
    maps = torch.stack(out.attentions)[:, 0].numpy()
    keys = [layer.keys[0].numpy() for layer in out.past_key_values.layers]
    return maps, keys, token


def test_it_is_the_last_row_of_the_whole_map(model, ids, looked) -> None:
    maps, keys, token = whole(model, ids)
    assert looked.token == token
    assert looked.attention.shape == (2, 4, N)  # its own column is gone, and nothing was scaled up
    np.testing.assert_allclose(looked.attention, maps[:, :, -1, :-1], atol=1e-6)  # the eager softmax is in float32
    assert (looked.attention.sum(-1) < 1).all()
    np.testing.assert_allclose(looked.key_norm, [np.linalg.norm(layer, axis=-1)[:, :N] for layer in keys], rtol=1e-6)
    uniform = np.array([sum(1 / (query + 1) for query in range(key, N)) for key in range(N)])
    np.testing.assert_allclose(looked.share, maps[:, :, :-1, :-1].sum(2) / uniform, atol=1e-5)
    np.testing.assert_array_equal(looked.counted, N - np.arange(N) >= MIN_VIEWERS)


def test_a_model_without_a_cache_gives_the_same(model, ids, looked) -> None:
    class Cacheless(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.spec, self.tokenizer, self.device = model, model.spec, None, torch.device("cpu")

        def forward(self, ids, attention_mask=None):
            return self.inner(ids, attention_mask)

    found = look(Cacheless(), ids)
    assert found.token == looked.token
    np.testing.assert_allclose(found.attention, looked.attention, atol=1e-9)
    np.testing.assert_allclose(found.key_norm, looked.key_norm, atol=1e-9)


def test_rows_say_what_the_arrays_say(looked) -> None:
    rows = head_rows(looked, unit=7, nulls=5)
    assert [(row["layer"], row["head"]) for row in rows] == [(layer, head) for layer in (0, 1) for head in range(4)]
    for row in rows:
        assert set(row) == set(HEADS)
        paid, norms = looked.attention[row["layer"], row["head"]], looked.key_norm[row["layer"], row["head"] // 2]
        order = np.argsort(-norms)
        lost, best = paid[order].cumsum(), np.sort(paid).cumsum()
        assert row["alr"] == pytest.approx((lost - best).sum())
        assert row["expected"] == pytest.approx(paid.sum() * (N + 1) / 2 - best.sum())
        assert row["kept"] == pytest.approx(paid[order[N // 2 :]].sum() / paid.sum())
        assert row["kept_oracle"] == pytest.approx(np.sort(paid)[N // 2 :].sum() / paid.sum())
        assert row["next"] == pytest.approx(spearmanr(norms, paid).statistic)
        assert row["next_rest"] == pytest.approx(spearmanr(norms[1:], paid[1:]).statistic)
        share, seen = looked.share[row["layer"], row["head"]], looked.counted
        assert row["received"] == pytest.approx(spearmanr(norms[seen], share[seen]).statistic)
        values = looked.value_norm[row["layer"], row["head"] // 2]
        assert row["value"] == pytest.approx(spearmanr(values[seen], share[seen]).statistic)
        assert row["first"] == pytest.approx(paid[0])
        rest = np.argsort(-norms[1:])
        assert row["alr_rest"] == pytest.approx((paid[1:][rest].cumsum() - np.sort(paid[1:]).cumsum()).sum())
        assert (row["loss"][0], row["loss"][100]) == (0, pytest.approx(paid.sum()))
        assert row["loss"][50] == pytest.approx(lost[N // 2 - 1])
        assert len(row["null_next"]) == 5
    assert head_rows(looked, unit=7, nulls=5) == rows
    assert head_rows(looked, unit=8, nulls=5)[0]["null_next"] != rows[0]["null_next"]


def test_layers_are_compared_by_what_their_keys_receive(looked) -> None:
    (row,) = layer_rows(looked, unit=0)
    profiles = looked.share[..., looked.counted].mean(1)
    assert row == {
        "unit": 0, "layer": 0, "other": 1, "correlation": pytest.approx(spearmanr(*profiles).statistic),
    }  # fmt: skip


def test_what_cannot_be_looked_at_is_refused(model, ids) -> None:
    with pytest.raises(UsageError, match="a chunk has 10 tokens; expected 16 or more"):
        look(model, ids[:10])
    with pytest.raises(UsageError, match="'llada' is not causal: it has no next query"):
        look(sl.load("tiny-llada"), ids)


def edited(model, ids: torch.Tensor, mask: torch.Tensor, context: int) -> tuple[np.ndarray, float]:
    """Maps of the tokens behind the context and their loss, entries of the cached keys set to 0 in the cache itself."""
    eager = tiny_causal("llama", attn_implementation="eager").double()
    eager.load_state_dict(model.model.state_dict())
    with torch.no_grad():
        cache = eager(ids[None, :context], use_cache=True).past_key_values
        for layer, where in zip(cache.layers, mask, strict=True):
            layer.keys = layer.keys.masked_fill(where, 0.0)
        out = eager(ids[None, context:-1], past_key_values=cache, output_attentions=True)
    loss = torch.nn.functional.cross_entropy(out.logits[0], ids[context + 1 :])
    return torch.stack(out.attentions)[:, 0].numpy(), float(loss)


def test_the_probe_is_an_edit_of_the_cache(model, ids) -> None:
    probe = Probe(keys=4, dims=2, draws=3)
    rows = probe_chunk(model, ids, probe, unit=0)
    context = N - N // 4
    _, keys, _ = whole(model, ids)
    cached = torch.tensor(np.stack(keys))[:, :, :context]  # [layer, kv_head, key, dim]
    peaks = torch.zeros_like(cached, dtype=torch.bool)
    for layer, head in np.ndindex(2, 2):
        for key in cached[layer, head].norm(dim=-1).argsort()[:4]:
            peaks[layer, head, key, cached[layer, head, key].abs().argsort(descending=True)[:2]] = True
    before, loss = edited(model, ids, torch.zeros_like(peaks), context)
    after, moved_loss = edited(model, ids, peaks, context)
    assert rows[0]["nll"] == pytest.approx(loss, abs=1e-6)
    assert rows[1]["edit"] == "peaks"
    assert rows[1]["nll"] == pytest.approx(moved_loss, abs=1e-6)
    change = np.abs(after - before).sum(-1).mean(axis=(1, 2)) / 2
    np.testing.assert_allclose(rows[1]["change_by_layer"], change, atol=1e-5)
    assert rows[1]["change"] == pytest.approx(change.mean(), abs=1e-5)
    shares = [float((cached[i] ** 2)[peaks[i]].sum() / (cached[i] ** 2)[peaks[i].any(-1)].sum()) for i in (0, 1)]
    assert rows[1]["removed"] == pytest.approx(np.mean(shares), rel=1e-5)


def test_controls_touch_nothing_that_the_peaks_do() -> None:
    keys = torch.randn(3, 20, 8, generator=torch.Generator().manual_seed(0))
    probe = Probe(keys=4, dims=3)
    peaks = choose_entries(keys, "peaks", probe, torch.Generator())
    for seed in range(10):
        draws = torch.Generator().manual_seed(seed)
        random, elsewhere = (choose_entries(keys, edit, probe, draws) for edit in ("random", "elsewhere"))
        for entries in (peaks, random, elsewhere):
            assert entries.sum(-1).flatten().unique().tolist() == [0, 3]
            assert entries.any(-1).sum(-1).tolist() == [4, 4, 4]
        assert torch.equal(random.any(-1), peaks.any(-1))
        assert not (random & peaks).any()
        assert not (elsewhere.any(-1) & peaks.any(-1)).any()
        sizes = keys.abs()
        least = sizes.masked_fill(~elsewhere, torch.inf).amin(-1)[elsewhere.any(-1)]
        assert (least >= sizes.masked_fill(elsewhere, 0.0).amax(-1)[elsewhere.any(-1)]).all()  # their own peaks


def test_draws_are_seeded_and_differ(model, ids) -> None:
    probe = Probe(keys=4, dims=2, draws=3)
    rows = probe_chunk(model, ids, probe, unit=0)
    drawn = [(edit, draw) for edit in ("random", "elsewhere") for draw in range(3)]
    assert [(row["edit"], row["draw"]) for row in rows] == [("none", 0), ("peaks", 0), *drawn]
    assert all(set(row) == set(PEAKS) for row in rows)
    assert rows == probe_chunk(model, ids, probe, unit=0)
    others = probe_chunk(model, ids, probe, unit=1)
    assert others[1] == rows[1] | {"unit": 1}  # peaks are no matter of chance
    assert all(mine["change"] != other["change"] for mine, other in zip(rows[2:], others[2:], strict=True))
    assert len({row["change"] for row in rows[1:]}) == 7
    assert rows[1]["removed"] > max(row["removed"] for row in rows[2:5])


def test_the_probe_leaves_nothing_behind(model, ids) -> None:
    with torch.no_grad():
        before = model(ids[None])
        probe_chunk(model, ids, Probe(keys=2, dims=2, draws=1), unit=0)
        assert torch.equal(model(ids[None]), before)


def test_probes_that_leave_nothing_to_compare_with_are_refused(model, ids) -> None:
    with pytest.raises(UsageError, match="5 dimensions of 8 keys, where keys have 8 and the context 30 tokens"):
        probe_chunk(model, ids, Probe(dims=5), unit=0)
    with pytest.raises(UsageError, match="dims is 0; expected a number, 1 or more"):
        Probe(dims=0)
