"""Ask the reference, compute the same, compare, certify."""

import json
import platform
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinklens.errors import SinklensError, UsageError, VerificationError, choose
from sinklens.models.catalog import Located, locate
from sinklens.models.fields import Fields
from sinklens.models.load import NATIVE, load, native_family
from sinklens.sampling.diffusion import DreamSampler, LLaDASampler
from sinklens.sampling.generate import generate
from sinklens.types import ModelSpec
from sinklens.verification.certificate import describe_files, hash_file, write_certificate
from sinklens.verification.compare import TOLERANCE, compare_canvases, compare_logits
from sinklens.verification.protocol import (
    PROTOCOL,
    RUNS,
    Reference,
    build_inputs,
    read_answer,
    run_reference,
)


def verify(
    model: str,
    reference: Reference,
    *,
    to: Path,
    dtype: str = "float32",
    device: str = "cpu",
    revision: str | None = None,
) -> dict[str, Any]:
    """The certificate, also written to `to`; if the two sides disagree, a VerificationError after that."""
    choose("dtype", dtype, tuple(TOLERANCE))
    located = locate(model, revision=revision)
    spec = _read_spec(located)
    inputs = build_inputs(spec)
    request = {
        "protocol": PROTOCOL,
        "model": reference.model or str(located.folder.resolve()),
        "family": spec.family,
        "dtype": dtype,
        "device": device,
        "vocab_size": spec.vocab_size,
        "mask_id": spec.mask_id,
        "runs": [
            {"name": f"canvas{number}", "prompt": f"prompt{number}", "settings": settings}
            for number, settings in enumerate(RUNS[spec.family])
        ],
    }
    answers, versions = _ask(reference, request, inputs, to.resolve())
    compared, disagreements = _compare(located.folder, request, inputs, answers)
    certificate = write_certificate(
        to,
        {
            "model": located.source,
            "family": spec.family,
            "verdict": "disagrees" if disagreements else "agrees",
            "disagreements": disagreements,
            "dtype": dtype,
            "device": device,
            **compared,
            "versions": {"sinklens": _own_versions(), "reference": versions},
            "files": describe_files(located.folder),
            "script": {"name": reference.script.name, "sha256": hash_file(reference.script)},
        },
    )
    if disagreements:
        more = f" ({len(disagreements) - 1} more in {to / 'certificate.json'})" if disagreements[1:] else ""
        rounded = dtype != "float32" and compared["logits"]["largest_difference"] <= compared["logits"]["tolerance"]
        hint = f" (expected in {dtype}: compare in float32)" if rounded else ""
        raise VerificationError(f"{located.source} and the reference disagree: {disagreements[0]}{more}{hint}")
    return certificate


def _read_spec(located: Located) -> ModelSpec:
    fields = Fields.of_folder(located.folder)
    family = native_family(fields)
    if family is None:
        raise UsageError(
            f"{located.source} is a {fields.values.get('model_type')!r} model, which runs in transformers' own "
            f"classes: there is nothing to verify; expected one of {', '.join(NATIVE)}"
        )
    spec: ModelSpec = import_module(NATIVE[family]).plan(located.folder, fields, located.source).spec
    return spec


def _ask(
    reference: Reference, request: dict[str, Any], inputs: dict[str, Tensor], to: Path
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Write the request, run the script, read the answer. Answers of an earlier run are removed first."""
    from safetensors.torch import save_file

    question, answer = to / "request", to / "answer"
    for folder in (question, answer):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SinklensError(
                f"cannot write to {to} ({error.strerror}); choose another folder for the run"
            ) from error
    for stale in (answer / "answer.safetensors", answer / "answer.json", to / "certificate.json"):
        stale.unlink(missing_ok=True)
    save_file(inputs, question / "inputs.safetensors")
    (question / "request.json").write_text(json.dumps(request, indent=2) + "\n", "utf-8")
    run_reference(reference, question, answer, to / "reference.log")
    return read_answer(answer, ("logits", *(run["name"] for run in request["runs"])))


def _compare(
    folder: Path, request: dict[str, Any], inputs: dict[str, Tensor], answers: dict[str, Tensor]
) -> tuple[dict[str, Any], list[str]]:
    """What was compared, and the disagreements in the order they were found."""
    model = load(folder, device=request["device"], dtype=request["dtype"])
    with torch.no_grad():
        logits = model(inputs["ids"].to(model.device))
    compared, wrong = compare_logits(logits, answers["logits"], dtype=request["dtype"])
    disagreements, canvases = [wrong], []
    kind = DreamSampler if request["family"] == "dream" else LLaDASampler
    for run in request["runs"]:
        ours = generate(model, inputs[run["prompt"]], kind(**run["settings"])).canvases
        assert ours is not None
        entry, wrong = compare_canvases(run["name"], ours, answers[run["name"]])
        canvases.append({**entry, "settings": run["settings"]})
        disagreements.append(wrong)
    return {"logits": compared, "canvases": canvases}, [text for text in disagreements if text is not None]


def _own_versions() -> dict[str, str]:
    import sinklens

    return {
        "sinklens": sinklens.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }
