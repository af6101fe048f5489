"""Numbers on their way from a card: as they were when they were sent, and not behind what the card does next."""

import weakref
from collections import deque

import pytest
import torch

from sinklens.attention import outbox
from sinklens.attention.outbox import MOST, Courier, Layout, Outbox, Parcel

LONG = 2_000_000_000  # cycles of a card, about a second


def test_what_is_in_host_memory_is_not_copied() -> None:
    tensors = [torch.arange(3), torch.rand(2)]
    arrived = Courier().send(*tensors)()
    assert [tensor.data_ptr() for tensor in arrived] == [tensor.data_ptr() for tensor in tensors]


def test_tensors_in_one_piece() -> None:
    tensors = [
        torch.rand(3, 5),
        torch.arange(7),
        torch.zeros(0, 2),
        torch.rand(2, 3, 4),
        torch.ones(9, dtype=torch.bool),
    ]
    layout = Layout(tensors)
    whole = torch.zeros(layout.bytes, dtype=torch.uint8)
    for part, tensor in zip(layout.apart(whole), tensors, strict=True):
        part.copy_(tensor)
    for part, tensor in zip(layout.apart(whole), tensors, strict=True):
        assert part.dtype == tensor.dtype and torch.equal(part, tensor)


class Clock:
    """In an event's place."""

    def synchronize(self) -> None:
        pass


def test_places_are_used_again_when_nobody_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_pinned", torch.empty_like)
    box = Outbox.__new__(Outbox)
    box._layout, box._most, box._places = Layout([torch.zeros(4)]), 3, deque()
    box._aside = torch.zeros(box._layout.bytes, dtype=torch.uint8)

    def send(number: float) -> tuple[Parcel, int]:
        place = box._place()
        place.arrived, parcel = Clock(), Parcel(place, box._layout)
        place.pinned.copy_(torch.full((4,), float(number)).view(torch.uint8))
        place.parcel = weakref.ref(parcel)
        box._places.append(place)
        return parcel, place.pinned.data_ptr()

    used = {send(0)[1] for _ in range(5)}
    assert len(used) == 1  # whoever could have read it is gone
    kept = [send(number) for number in (1, 2, 3)]
    assert len(used | {where for _, where in kept}) == 3
    fourth, where = send(4)  # there are no more: the oldest moves to ordinary memory
    assert where == kept[0][1] and kept[0][0].moved and not kept[1][0].moved
    with kept[1][0].lent() as (numbers,):
        assert numbers.data_ptr() == kept[1][1]
    values = [float(parcel.open()[0].mean()) for parcel, _ in [*kept, (fourth, 0)]]
    assert values == [1, 2, 3, 4]
    assert send(5)[1] in {where for _, where in kept}  # what was read is free


@pytest.mark.gpu
def test_what_is_sent_arrives_while_the_card_goes_on() -> None:
    courier, sent = Courier(), torch.arange(1000, device="cuda")
    courier.send(sent)()  # the first time takes pinned memory, for which a card may be waited for
    waiting = courier.send(sent, sent.float())
    torch.cuda._sleep(LONG)
    busy = torch.cuda.current_stream().record_event()
    whole, real = waiting()
    assert not busy.query()
    assert torch.equal(whole, torch.arange(1000)) and torch.equal(real, torch.arange(1000.0))


@pytest.mark.gpu
def test_what_lies_on_both_sides() -> None:
    """A sampler of one's own may make its confidences in host memory."""
    there, here = Courier().send(torch.arange(5, device="cuda"), torch.full((5,), torch.nan))()
    assert torch.equal(there, torch.arange(5)) and here.isnan().all() and not here.is_cuda


@pytest.mark.gpu
def test_memory_of_what_was_sent_is_not_given_away_before_it_has_left() -> None:
    courier, expected, waiting = Courier(), [], []
    for number in range(50):
        expected.append(float(number))
        waiting.append(courier.send(torch.full((100_000,), float(number), device="cuda")))
        torch.full((100_000,), -1.0, device="cuda")  # would take the place of what was let go of
    assert [float(arrived()[0].mean()) for arrived in waiting] == expected


@pytest.mark.gpu
def test_every_run_of_a_graph_keeps_its_numbers() -> None:
    places = [torch.zeros(1000, device="cuda"), torch.zeros(3, 7, dtype=torch.int64, device="cuda")]
    box, parcels = Outbox(places), []
    for number in range(3 * MOST):  # more than there are places
        places[0].fill_(number)
        places[1].fill_(-number)
        parcels.append(box.send())
    for number, parcel in enumerate(parcels):
        one, other = parcel.open()
        assert (one == number).all() and one.shape == (1000,)
        assert (other == -number).all() and other.shape == (3, 7)
