"""What cannot be meant is refused in words, and what is not self-attention is left alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sinklens as sl
from attention.zoo import rows
from interventions.replayed import probed
from sinklens.errors import UsageError
from sinklens.interventions.dose import Dose, overall
from sinklens.interventions.mask_sinks import MaskSinks
from sinklens.interventions.random_keys import RandomKeys


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (lambda: MaskSinks(top=0), "top is 0; expected an integer of at least 1"),
        (lambda: MaskSinks(top=1.0), "top is 1.0; expected an integer"),
        (lambda: MaskSinks(top=True), "top is True; expected an integer"),
        (lambda: MaskSinks(top=1, rank_by="mass"), "unknown rank_by 'mass'; expected one of 'received', 'last_row'"),
        (lambda: MaskSinks(top=1, measure="now"), "unknown measure 'now'; expected one of 'before', 'after', 'shadow'"),
        (lambda: MaskSinks(top=1, queries="some"), "unknown queries 'some'; expected one of 'all', 'generated',"),
        (lambda: MaskSinks(top=1, keys="old"), "unknown keys 'old'; expected one of 'recomputed', 'cached'"),
        (lambda: RandomKeys(top=0), "top is 0; expected an integer of at least 1"),
        (lambda: RandomKeys(top=1, seed=0.5), "seed is 0.5; expected an integer"),
    ],
)
def test_settings_that_cannot_be_meant(settings: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settings()


@pytest.mark.parametrize("choice", [{"rank_by": "last_row"}, {"queries": "last"}])
def test_a_bidirectional_model_has_no_newest_token(golden: Path, choice: dict[str, str]) -> None:
    model = sl.load(golden / "llada")
    message = "is for causal models, but this one is bidirectional"
    with pytest.raises(UsageError, match=message), sl.intervene(model, MaskSinks(top=1, **choice)):
        raise AssertionError("refused before anything runs")


def test_recomputed_keys_need_a_run_without_a_cache(llama: Any) -> None:
    model = sl.wrap(llama)
    message = "only the queries from 4 on: the model uses a KV cache; run it without"
    with pytest.raises(UsageError, match=message), sl.intervene(model, MaskSinks(top=1, keys="recomputed")):
        sl.generate(model, [5, 6, 7, 8], sl.AutoregressiveSampler(length=3))


def test_the_class_without_settings_is_refused(golden: Path) -> None:
    model = sl.load(golden / "llada")
    message = r"expected a function .* or settings such as MaskSinks\(top=1\)"
    with pytest.raises(UsageError, match=message), sl.intervene(model, MaskSinks):  # type: ignore[arg-type]
        raise AssertionError("refused before anything runs")


def test_a_plain_function_is_the_value_of_its_context(golden: Path) -> None:
    def same(call: sl.AttentionCall) -> sl.AttentionCall:
        return call

    with sl.intervene(sl.load(golden / "llada"), same) as given:
        assert given is same


def test_gradient_checkpointing_is_refused() -> None:
    class Attention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = Attention()

        def forward(self, x: Tensor) -> Any:
            return checkpoint(self.attention, x, use_reentrant=False)

    model, x = Model(), torch.randn(1, 2, 4, 8, requires_grad=True)
    with sl.intervene(model, MaskSinks(top=1)):
        output = model(x)
        with pytest.raises(UsageError, match="switch checkpointing off under this intervention"):
            output.sum().backward()


def test_cross_attention_is_left_alone_and_every_layer_has_its_own_family() -> None:
    """T5: the encoder looks both ways, the decoder does not."""
    model = next(row for row in rows() if row.name == "t5").build("eager")
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    with probed(model, MaskSinks(top=1)) as (lab, seen), torch.no_grad():
        for length in (3, 4):
            model(input_ids=ids, decoder_input_ids=torch.arange(3, 3 + length)[None], use_cache=False)
    cross = [one for one in seen if one.incoming.site.kind == "cross"]
    assert len(cross) == 4
    assert all(one.effective.mask is one.incoming.mask for one in cross)
    again = [one for one in seen if one.incoming.site.kind == "self" and one.incoming.site.step == 1]
    taken = [(one.effective.mask == -torch.inf).sum(-1)[0, 0].tolist() for one in again]
    before = [0 if one.incoming.mask is None else (one.incoming.mask == -torch.inf).sum(-1)[0, 0] for one in again]
    assert taken[:2] == [[1] * 5] * 2
    assert [len(rows) for rows in taken[2:]] == [4, 4]
    assert all(
        (torch.tensor(rows) - was).tolist() == [0, 0, 0, 1] for rows, was in zip(taken[2:], before[2:], strict=True)
    )
    assert len(lab.doses) == 8


def test_the_overall_dose_counts_the_steps_that_mask() -> None:
    def dose(step: int, removed: float, largest: float) -> Dose:
        return Dose(run=0, step=step, layer=0, masked=step > 0, removed=removed, largest=largest, keys=1.0)

    doses = [dose(0, 0.0, 0.9), dose(1, 0.3, 0.4), dose(2, 0.1, 0.4)]
    assert overall(doses) == pytest.approx(0.5)
    assert doses[1].ratio == pytest.approx(0.75)
    assert overall(doses[:1]) != overall(doses[:1])  # NaN: nothing was masked
    assert dose(1, 0.0, 0.0).ratio != dose(1, 0.0, 0.0).ratio
