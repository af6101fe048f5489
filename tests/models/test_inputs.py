"""What a forward refuses, what it warns of, and what it leaves alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from sinklens.errors import UsageError
from sinklens.models.load import load


@pytest.fixture
def model(golden: Path):
    return load(golden / "llada")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 2, 3], r"ids are a list; expected a tensor \[batch, query\], such as torch.tensor"),
        (torch.arange(5), r"ids have shape \[5\]; expected \[batch, query\]"),
        (torch.zeros(1, 5), "ids are torch.float32; expected integer token ids"),
        (torch.zeros(1, 5, dtype=torch.bool), "ids are torch.bool; expected integer token ids"),
        (torch.zeros(1, 0, dtype=torch.long), "ids are empty"),
        (torch.zeros(0, 4, dtype=torch.long), "ids are empty"),
        (torch.tensor([[0, 128]]), "ids reach from 0 to 128; this model accepts 0 to 127"),
        (torch.tensor([[-1, 5]]), "ids reach from -1 to 5"),
    ],
)
def test_ids_that_cannot_be(model, ids: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        model(ids)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(1, 4, dtype=torch.long), r"has shape \[1, 4\]; expected that of the ids, \[2, 5\]"),
        (torch.full((2, 5), 0.5), r"attention_mask \(torch.float32\) holds values other than 0 and 1; expected 1 for"),
        (torch.full((2, 5), torch.nan), "holds values other than 0 and 1"),
        (torch.full((2, 5), 2), "holds values other than 0 and 1"),
        ([[1] * 5] * 2, "attention_mask is a list; expected a tensor of the shape of the ids"),
        (torch.tensor([[1] * 5, [0] * 5]), "attention_mask is 0 all along row 1"),
    ],
)
def test_masks_that_cannot_be(model, mask: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        model(torch.zeros(2, 5, dtype=torch.long), mask)


@pytest.mark.parametrize("positions", [torch.arange(4)[None], torch.zeros(1, 5), torch.arange(-1, 4)[None]])
def test_positions_that_cannot_be(model, positions: torch.Tensor) -> None:
    with pytest.raises(UsageError, match=r"position_ids have shape .* expected non-negative integers"):
        model(torch.zeros(1, 5, dtype=torch.long), position_ids=positions)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_masks_of_any_dtype_count(model, dtype: torch.dtype) -> None:
    ids, mask = torch.arange(6)[None], torch.tensor([[0, 1, 1, 1, 1, 1]])
    with torch.no_grad():
        assert torch.equal(model(ids, mask.to(dtype)), model(ids, mask))
        assert torch.equal(model(ids, torch.ones(1, 6, dtype=dtype)), model(ids))


@pytest.mark.parametrize("family", ["llada", "dream", "mmada"])
def test_a_padded_row_computes_what_it_computes_alone(golden: Path, family: str) -> None:
    model = load(golden / family)
    ids = torch.arange(3, 15)[None]
    padded = torch.cat((torch.full((1, 7), model.spec.pad_id), ids), dim=1)
    mask = (torch.arange(19) >= 7).long()[None]
    with torch.no_grad():
        torch.testing.assert_close(model(padded, mask)[:, 7:], model(ids), atol=5e-5, rtol=0)


def test_dream_with_one_token_and_padding(golden: Path) -> None:
    model = load(golden / "dream")
    with torch.no_grad():
        batch = model(torch.tensor([[5], [6]]))
        torch.testing.assert_close(
            model(torch.tensor([[120, 5]]), torch.tensor([[0, 1]]))[:, 1], batch[:1, 0], atol=5e-5, rtol=0
        )


def test_past_the_promised_length_one_warning(copied) -> None:
    model = load(copied("llada", max_sequence_length=8))
    ids = torch.arange(20)[None]
    with torch.no_grad():
        model(ids[:, :8])  # warnings are errors here
        with pytest.warns(UserWarning, match="20 positions; the config of this llada model promises 8"):
            logits = model(ids)
        model(ids)
    assert logits.shape == (1, 20, 128)


def test_longer_input_than_before_and_other_dtypes(model) -> None:
    ids = torch.arange(100)[None]
    with torch.no_grad():
        model(ids[:, :3])
        long = model(ids)
        assert torch.equal(load(model.spec.source)(ids), long)
        double = model.double()(ids)
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), long, atol=5e-5, rtol=0)


def test_gradients_after_inference_mode(model) -> None:
    ids = torch.arange(6)[None]
    with torch.inference_mode():
        model(ids)
    model(ids).sum().backward()
    assert float(model.blocks[0].attention.q.weight.grad.abs().sum()) > 0
