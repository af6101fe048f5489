"""A training under way, in one file: weights, the optimizer's moments and the step, so that none can be of another."""

from pathlib import Path

import torch
from torch import Tensor

from sinklens.errors import ModelError
from sinklens.files import write_tensors
from sinklens.selection.folder import fill, tensors_of
from sinklens.selection.selector import Selector

_WEIGHTS, _OPTIMIZER = "weights.", "optimizer."


def write_state(path: Path, selector: Selector, optimizer: torch.optim.Optimizer, *, step: int) -> None:
    """After `step` steps."""
    tensors = {_WEIGHTS + name: value for name, value in tensors_of(selector).items()}
    for number, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            tensors[f"{_OPTIMIZER}{number}.{key}"] = value.detach().cpu().contiguous()
    write_tensors(path, tensors, metadata={"step": str(step)})


def read_state(path: Path, selector: Selector, optimizer: torch.optim.Optimizer) -> int:
    """Fill both as they were when they were written; the number of steps that were done by then."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as handle:
            step = int(handle.metadata()["step"])
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, KeyError) as error:
        raise ModelError(f"{path} cannot be read ({error}); remove its folder and train again") from error
    fill(selector, {name.removeprefix(_WEIGHTS): value for name, value in tensors.items() if name.startswith(_WEIGHTS)})
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith(_OPTIMIZER):
            number, _, key = name.removeprefix(_OPTIMIZER).partition(".")
            state.setdefault(int(number), {})[key] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return step
