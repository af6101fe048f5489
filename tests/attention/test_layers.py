"""Arrays over all layers: from one stack where there is one, and always the reader's own."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sinklens.attention.call import AttentionCall, Site
from sinklens.attention.observation import Measured, Packed, StepObservation, _whole
from sinklens.attention.record import Record
from sinklens.errors import ObservationError


def record(layer: int, *, heads: int = 1, keys: int = 5) -> Record:
    draws = torch.Generator().manual_seed(layer)
    return Record(
        site=Site(step=0, layer=layer, module=f"blocks.{layer}"),
        by_group=torch.rand(2, 3, 4, keys, generator=draws),
        expected_by_group=torch.rand(2, 3, heads, keys, generator=draws),
        viewers_by_group=torch.rand(2, 3, heads, keys, generator=draws),
        group_names=("some",),
        queries=7,
        impl="chunked",
        kernel="sdpa",
        key_norm=torch.rand(3, 2, keys, generator=draws),
        output_norm=torch.rand(3, 4, keys, generator=draws),
    )


def observation(*records: Record, stacked: bool) -> StepObservation:
    measured = Measured(calls=list(records))
    if stacked:  # as what comes from a card
        names = ("by_group", "expected_by_group", "viewers_by_group", "key_norm", "output_norm")
        stacks = [torch.stack([getattr(one, name) for one in records]) for name in names]
        places = [[(name, i) for i in range(len(records))] for name in names]
        stacks.append(torch.rand(len(records), 3, 5))
        places.append([("hidden", f"blocks.{i}") for i in range(len(records))])
        measured = Packed(measured=measured, stacks=stacks, places=places).unpack(stacks, step=0)
    return StepObservation(step=0, fetch=lambda: measured)


@pytest.mark.parametrize("stacked", [False, True])
def test_arrays_are_those_of_the_records(stacked: bool) -> None:
    records = [record(layer) for layer in range(3)]
    seen = observation(*records, stacked=stacked)
    assert (_whole([one.key_norm for one in seen.calls if one.key_norm is not None]) is not None) == stacked
    for name in ("received", "expected", "viewers", "fair_share", "mass", "key_norm", "output_norm", "contribution"):
        torch.testing.assert_close(getattr(seen, name), torch.stack([getattr(one, name) for one in records]))
    torch.testing.assert_close(seen.groups["some"], torch.stack([one.by_group[0] for one in records]))
    torch.testing.assert_close(seen.group_expected["some"], torch.stack([one.expected_by_group[0] for one in records]))


def test_what_a_reader_changes_is_the_readers_own() -> None:
    seen = observation(record(0), record(1), stacked=True)
    assert _whole(list(seen.hidden.values())) is not None
    for read in (lambda: seen.key_norm, lambda: seen.received, lambda: seen.groups["some"], lambda: seen.hidden_norm):
        before = read().clone()
        read().zero_()
        assert torch.equal(read(), before)


def test_rows_that_are_not_all_of_an_array() -> None:
    whole = torch.rand(3, 4)
    rows: list[Tensor] = list(whole)
    assert _whole(rows) is whole
    for others in (rows[:2], rows[::-1], [rows[0], rows[1], torch.rand(4)], [torch.rand(4)], list(whole.T)[:3]):
        assert _whole(others) is None


def test_layers_whose_masks_differ_between_heads_and_layers_of_other_lengths() -> None:
    seen = observation(record(0), record(1, heads=4), stacked=False)
    assert seen.expected.shape == (2, 3, 4, 5)
    with pytest.raises(ObservationError, match=r"layers differ in shape, so received cannot be stacked: blocks\.0"):
        _ = observation(record(0), record(1, keys=6), stacked=False).received
    ungrouped = [replace(record(layer, keys=5 + layer), group_names=()) for layer in (0, 1)]
    assert observation(*ungrouped, stacked=False).groups == {}


def test_a_contribution_that_was_not_observed_is_called_by_its_name() -> None:
    seen = observation(replace(record(0), output_norm=None), stacked=False)
    with pytest.raises(ObservationError, match=r"^contribution was not observed; it needs observe"):
        _ = seen.contribution


def test_an_outline_has_the_shapes_and_no_numbers() -> None:
    query, key = torch.rand(2, 4, 6, 8), torch.rand(2, 2, 9, 8)
    call = AttentionCall(query=query, key=key, value=key, real_queries=torch.ones(2, 6, dtype=torch.bool))
    outline = call.outline()
    assert torch.equal(outline.where_queries(), call.where_queries()) and outline.real_queries is call.real_queries
    for ours, theirs in ((outline.query, query), (outline.key, key), (outline.value, key)):
        assert ours.shape == theirs.shape and ours.untyped_storage().nbytes() <= 8
