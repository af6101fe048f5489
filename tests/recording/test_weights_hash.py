"""The hash of a model's weights: what it is over, on any device, and how much memory it takes."""

import json
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import sinklens as sl
from sinklens.recording import identity
from sinklens.recording.identity import hash_weights

CARDS = Path(__file__).parents[2] / "docs/results/cards"


class Buffers(nn.Module):
    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)


def in_plain_words(model: nn.Module, piece: int) -> str:
    digest = sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        data = tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        for start in range(0, max(1, len(data)), piece):
            digest.update(sha256(data[start : start + piece]).digest())
    return digest.hexdigest()


def of_many_kinds() -> Buffers:
    numbers = torch.arange(4000.0).reshape(50, 80)
    return Buffers(
        whole=numbers,
        transposed=numbers.t(),
        strided=numbers[::3, 5:],
        expanded=torch.ones(1).expand(300),
        channels=torch.randn(2, 3, 5, 7).to(memory_format=torch.channels_last),
        empty=torch.zeros(0, 3),
        scalar=torch.tensor(7),
        brain=numbers.to(torch.bfloat16).t(),
        truth=numbers > 9,
        small=torch.zeros(5, dtype=torch.float8_e4m3fn),
        exact=torch.zeros(64),  # bytes: four pieces of 64, no rest
    )


@pytest.mark.parametrize("piece", [64, 1000, identity.PIECE])
def test_it_is_over_the_bytes_of_every_piece(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(identity, "PIECE", piece)
    model = of_many_kinds()
    assert hash_weights(model) == in_plain_words(model, piece)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-dream"])
def test_published_cards_carry_it(name: str) -> None:
    card = json.loads((CARDS / name / "card.json").read_text())
    assert hash_weights(sl.load(name, dtype=card["model"]["dtype"])) == card["model"]["weights_sha256"]


def test_weights_that_are_not_in_memory_have_none() -> None:
    assert hash_weights(Buffers(a=torch.zeros(3), b=torch.zeros(3, device="meta"))) is None


PEAK = """
import resource, torch
from torch import nn
from sinklens.recording.identity import hash_weights
model = nn.Module()
for number in range(6):
    model.register_buffer(f"w{number}", torch.ones(2048, 6144).t())
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
hash_weights(nn.Linear(64, 64))
before = peak()
hash_weights(model)
print(peak() - before)
"""


def test_few_copies_live_at_once() -> None:
    """Of six weights of 48 MiB, none of which lies as it is hashed."""
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2.5 * 48


@pytest.mark.gpu
def test_of_weights_on_a_card() -> None:
    """The copy of one that lies otherwise is made behind much other work of the card."""
    for _ in range(5):
        model = of_many_kinds().cuda()
        busy = torch.randn(4096, 4096, device="cuda")
        for _ in range(20):
            busy = busy @ busy
        model.register_buffer("large", (busy.isnan() + torch.arange(4096.0, device="cuda")).t())
        assert hash_weights(model) == in_plain_words(model, identity.PIECE)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two cards")
def test_of_weights_on_two_cards() -> None:
    numbers = torch.arange(2.0**24).reshape(4096, 4096)
    here = Buffers(a=numbers, b=numbers.t())
    there = Buffers(a=numbers.to("cuda:0"), b=numbers.to("cuda:1").t())
    assert hash_weights(there) == hash_weights(here)


@pytest.mark.parametrize("threads", [0, 1])
def test_threads_that_cannot_be_started_are_done_without(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may have little memory gets none for their stacks."""
    model = nn.Sequential(*(nn.Linear(40, 40) for _ in range(4)))
    monkeypatch.setattr(identity, "PIECE", 100)
    expected = hash_weights(model)
    start, started = threading.Thread.start, []

    def limited(self: threading.Thread) -> None:
        if len(started) == threads:
            raise RuntimeError("can't start new thread")
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    assert hash_weights(model) == expected
