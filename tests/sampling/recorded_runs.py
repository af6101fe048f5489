"""The recorded runs of the original samplers, as prompts and settings of ours."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinklens.sampling.diffusion import DreamSampler, LLaDASampler
from sinklens.sampling.step import Sampler

FOLDER = Path(__file__).parents[1] / "data" / "golden"
FAMILIES = ("llada", "mmada", "dream")


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    name: str
    family: str
    sampler: Sampler
    prompt: Tensor
    attention_mask: Tensor | None
    seed: int | None
    canvases: Tensor
    output: Tensor
    tokens_per_step: list[int] | None


def cases(*families: str) -> list[Case]:
    return [_read(family, case) for family in families for case in _file(family)["cases"]]


def case(family: str, name: str) -> Case:
    return next(found for found in cases(family) if found.name == name)


def _file(family: str) -> dict[str, Any]:
    return json.loads((FOLDER / family / "generation.json").read_text())


def _read(family: str, case: dict[str, Any]) -> Case:
    mask = case["attention_mask"]
    return Case(
        name=case["name"],
        family=family,
        sampler=_sampler(family, dict(case["settings"])),
        prompt=torch.tensor(case["prompt_ids"]),
        attention_mask=None if mask is None else torch.tensor(mask),
        seed=case["seed"],
        canvases=torch.tensor(case["canvases"]),
        output=torch.tensor(case["output_ids"]),
        tokens_per_step=case.get("tokens_per_step"),
    )


def _sampler(family: str, settings: dict[str, Any]) -> Sampler:
    if family == "dream":
        return DreamSampler(length=settings.pop("max_new_tokens"), **settings)
    names = {"gen_length": "length", "block_length": "block", "cfg_scale": "cfg", "eot_token": "eot_id"}
    fast = settings.pop("method", None) == "mmu_generate_fast"
    eot = _file(family)["eot_token_id"] if settings.get("confidence_eos_eot_inf") else None
    renamed = {names.get(name, name): value for name, value in settings.items()}
    return LLaDASampler(**{"eot_id": eot, **renamed}, stop_at_eos=fast)
