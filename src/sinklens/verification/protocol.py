"""What the reference is asked, how it is run, and what it must answer (docs/verify.md tells its author).

A request folder with `request.json` and `inputs.safetensors` is written, then `PYTHON SCRIPT REQUEST_FOLDER
ANSWER_FOLDER` is called in a subprocess, which leaves `answer.safetensors` and `answer.json`.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from sinklens.errors import UsageError, VerificationError
from sinklens.types import ModelSpec

PROTOCOL = 1
SEED = 20250214
TAIL = 2000  # characters of a reference's output that an error message quotes

_MASKED_RUNS = (
    {"steps": 16, "length": 16, "block": 16},
    {"steps": 16, "length": 16, "block": 4},
    {"steps": 8, "length": 24, "block": 12},
)
_DREAM_RUNS = (
    {"steps": 16, "length": 16, "alg": "maskgit_plus"},
    {"steps": 8, "length": 16, "alg": "topk_margin"},
    {"steps": 12, "length": 24, "alg": "entropy"},
)
RUNS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "llada": _MASKED_RUNS,
    "mmada": _MASKED_RUNS,
    "dream": _DREAM_RUNS,
}


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The other side: a script, the Python that runs it, and the model as that side knows it."""

    script: Path
    python: str = sys.executable
    model: str | None = None  # None: the folder that we load
    timeout: float = 3600.0  # seconds

    def __post_init__(self) -> None:
        if not self.script.is_file():
            raise UsageError(f"no reference script at {self.script}; docs/verify.md shows how to write one")
        if not self.timeout > 0:
            raise UsageError(f"timeout must be a positive number of seconds, got {self.timeout}")


def build_inputs(spec: ModelSpec) -> dict[str, Int[Tensor, "row position"]]:
    """The same ids every time: `ids` for the logits, a third of them masked, and a prompt for each run."""
    assert spec.mask_id is not None
    special = {spec.mask_id, spec.bos_id, spec.eos_id, spec.eot_id, spec.pad_id}
    ordinary = torch.tensor([token for token in range(spec.vocab_size) if token not in special])
    generator = torch.Generator().manual_seed(SEED)

    def draw(rows: int, positions: int) -> Tensor:
        return ordinary[torch.randint(len(ordinary), (rows, positions), generator=generator)]

    ids = draw(3, 32)
    ids[torch.rand(ids.shape, generator=generator) < 1 / 3] = spec.mask_id
    return {"ids": ids, "prompt0": draw(1, 9), "prompt1": draw(1, 17), "prompt2": draw(1, 5)}


def run_reference(reference: Reference, request: Path, answer: Path, log: Path) -> None:
    """Call the script; whatever it prints goes to `log`."""
    command = [reference.python, str(reference.script.resolve()), str(request), str(answer)]
    with log.open("wb") as output:
        try:
            code = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, timeout=reference.timeout, check=False
            ).returncode
        except FileNotFoundError:
            raise UsageError(f"no Python at {reference.python}; see --python") from None
        except OSError as error:
            raise VerificationError(f"cannot start {reference.python}: {error.strerror}; see --python") from None
        except subprocess.TimeoutExpired:
            raise VerificationError(
                f"the reference did not finish in {reference.timeout:g} s and was stopped; allow it more "
                f"with --timeout. It printed:\n{_tail(log)}"
            ) from None
    if code:
        raise VerificationError(f"the reference failed with exit code {code}. It printed:\n{_tail(log)}")


def read_answer(folder: Path, names: tuple[str, ...]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of an answer, and the versions it was computed with."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(folder / "answer.safetensors")
        versions = json.loads((folder / "answer.json").read_text("utf-8"))["versions"]
    except FileNotFoundError as error:
        raise VerificationError(
            f"the reference ended without {Path(error.filename or 'answer.safetensors').name}; it must write "
            f"answer.safetensors and answer.json into its second argument"
        ) from None
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise VerificationError(f"the answer of the reference cannot be read: {error!r}") from None
    missing = [name for name in names if name not in tensors]
    if missing:
        came = ", ".join(sorted(tensors)) or "nothing"
        raise VerificationError(f"answer.safetensors lacks {', '.join(missing)}; it holds {came}")
    return tensors, {str(name): str(value) for name, value in versions.items()}


def _tail(log: Path) -> str:
    printed = log.read_text("utf-8", errors="replace").strip()
    return printed[-TAIL:] if printed else "(nothing)"
