"""Arrays over all layers: from one stack where there is one, and always the reader's own."""

from dataclasses import replace

import pytest
import torch

from sinklens.attention.call import AttentionCall, Site
from sinklens.attention.observation import StepObservation
from sinklens.attention.packed import Arrived, Measured, Packed
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
    seen = StepObservation(step=0)
    seen.calls.extend(records)
    if stacked:  # as what comes from a card
        names = ("by_group", "expected_by_group", "viewers_by_group", "key_norm", "output_norm")
        stacks = [torch.stack([getattr(one, name) for one in records]) for name in names]
        places = [[(name, i) for i in range(len(records))] for name in names]
        stacks.append(torch.rand(len(records), 3, 5))
        places.append([("hidden", f"blocks.{i}") for i in range(len(records))])
        zeros = {f"blocks.{i}": torch.zeros(3, 5) for i in range(len(records))}
        packed = Packed(measured=Measured(calls=list(records), hidden=zeros), stacks=stacks, places=places)
        return StepObservation(step=0, fetch=lambda: Arrived(packed=packed, stacks=[*stacks], step=0))
    return seen


@pytest.mark.parametrize("stacked", [False, True])
def test_arrays_are_those_of_the_records(stacked: bool) -> None:
    records = [record(layer) for layer in range(3)]
    seen = observation(*records, stacked=stacked)
    assert (seen.stacked("key_norm") is seen.stacked("key_norm")) == stacked
    for name in ("received", "expected", "viewers", "fair_share", "mass", "key_norm", "output_norm", "contribution"):
        torch.testing.assert_close(getattr(seen, name), torch.stack([getattr(one, name) for one in records]))
    torch.testing.assert_close(seen.groups["some"], torch.stack([one.by_group[0] for one in records]))
    torch.testing.assert_close(seen.group_expected["some"], torch.stack([one.expected_by_group[0] for one in records]))


def test_what_a_reader_changes_is_the_readers_own() -> None:
    seen = observation(record(0), record(1), stacked=True)
    assert seen.blocks == 2
    for read in (lambda: seen.key_norm, lambda: seen.received, lambda: seen.groups["some"], lambda: seen.hidden_norm):
        before = read().clone()
        read().zero_()
        assert torch.equal(read(), before)


@pytest.mark.parametrize("change", ["cross", "order", "missing"])
def test_stacks_that_are_not_of_all_layers_are_put_together_from_records(change: str) -> None:
    records = [record(layer) for layer in range(3)]
    if change == "cross":
        records[1] = replace(records[1], site=replace(records[1].site, kind="cross", layer=0))
    calls = records[::-1] if change == "order" else records
    stacks = [torch.stack([one.by_group for one in calls]), torch.rand(2, 3, 2, 5)]
    places = [[("by_group", i) for i in range(3)], [("key_norm", i) for i in (0, 1)]]
    packed = Packed(measured=Measured(calls=calls), stacks=stacks, places=places)
    assert packed.wholes == ({"by_group": 0} if change == "missing" else {})
    seen = StepObservation(step=7, fetch=lambda: Arrived(packed=packed, stacks=[*stacks], step=7))
    layers = [one for one in records if one.site.kind == "self"]
    assert torch.equal(seen.received, torch.stack([one.received for one in layers]))
    assert {one.site.step for one in seen.calls} == {7} and len(seen.outline) == 3


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
