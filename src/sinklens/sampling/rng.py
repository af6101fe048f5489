"""Random draws of a seeded run: torch's default generators hold its state only while a step of it runs.

The originals draw from torch's default generators, so a replay has to. A run is an iterator, and its caller
draws in between: around each step the state is swapped in and out, so neither disturbs the other.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from sinklens.errors import UsageError

LOWEST, HIGHEST = -(2**63), 2**64 - 1  # what torch takes as a seed


def read_seed(seed: Any) -> int:
    """A seed that torch takes, or a UsageError."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or not LOWEST <= int(seed) <= HIGHEST:
        raise UsageError(f"seed is {seed!r}; expected an integer from -2**63 to 2**64 - 1")
    return int(seed)


def draws_from(seed: Any, device: torch.device) -> Callable[[], AbstractContextManager[None]]:
    """A context to wrap around each step. seed None: the caller's own generators, which then move on."""
    if seed is None:
        return nullcontext
    start = read_seed(seed)
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"a seed works on 'cpu' and 'cuda' models, not on {device.type!r}; leave it out")
    index = torch.cuda.current_device() if device.type == "cuda" and device.index is None else device.index
    cuda = [index] if device.type == "cuda" else []
    states: list[torch.Tensor] = []

    @contextmanager
    def seeded() -> Iterator[None]:
        with torch.random.fork_rng(devices=cuda):
            _begin(start, cuda, states)
            yield
            states[:] = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in cuda)]

    return seeded


def _begin(seed: int, cuda: list[int], states: list[torch.Tensor]) -> None:
    """Seed the first time, go on from `states` afterwards. Generators of other devices are not touched."""
    if not states:
        torch.default_generator.manual_seed(seed)
        for device in cuda:
            torch.cuda.default_generators[device].manual_seed(seed)
        return
    torch.set_rng_state(states[0])
    for device, state in zip(cuda, states[1:], strict=True):
        torch.cuda.set_rng_state(state, device)
