"""The bring-your-own example runs as a user would run it, and says what it claims to."""

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

import sinklens as sl
from sinklens.attention.clock import StepNumber, at_step
from sinklens.models.language_model import LanguageModel
from sinklens.sampling.generate import generate
from sinklens.sampling.step import Sampler

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_dlm.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("own_dlm", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_example_runs() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    canvases = re.findall(r"^  \d  (the sink is .*)$", done.stdout, flags=re.MULTILINE)
    assert [canvas.count("_") for canvas in canvases] == [24, 23, 20, 16, 12, 6, 0]
    steps = re.findall(r"^  step (\d): (.*)$", done.stdout, flags=re.MULTILINE)
    assert [number for number, _ in steps] == ["0", "1", "2", "3", "4", "5"]
    assert all(len(re.findall(r"\d+ '.' x\d\.\d\d", layers)) == 3 for _, layers in steps)


def test_its_classes_are_what_the_protocols_ask_for(example: ModuleType) -> None:
    assert isinstance(example.Denoiser(), LanguageModel)
    assert isinstance(example.CosineSampler(steps=2, length=4), Sampler)


def test_padded_rows_give_what_they_give_alone(example: ModuleType) -> None:
    torch.manual_seed(0)
    model = example.Denoiser().eval()
    sampler = example.CosineSampler(steps=4, length=8)
    texts = ["hello", "a longer one ", "x"]
    together = generate(model, texts, sampler)
    alone = [generate(model, text, sampler) for text in texts]
    assert together.text == [run.text[0] for run in alone]


def test_the_sampler_of_the_page_runs(example: ModuleType) -> None:
    page = (ROOT / "docs" / "bring-your-own.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names = {
        "torch": torch,
        "F": F,
        "sl": sl,
        "dataclass": dataclass,
        "at_step": at_step,
        "StepNumber": StepNumber,
    }
    exec(code, names)
    torch.manual_seed(0)
    out = generate(example.Denoiser().eval(), ["hi", "hello"], names["LeftToRight"](length=3))
    assert out.canvases is not None
    decided = (out.canvases[:, :, 5:] != example.ALPHABET.index("_")).sum(dim=2)
    assert decided.tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
