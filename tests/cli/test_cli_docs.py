"""docs/cli.md is what the commands say, and the scripts in docs/verify.md run."""

import re
from pathlib import Path

import pytest

from sinklens.cli.reference import render
from sinklens.verification import Reference, verify

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", (ROOT / "docs" / "verify.md").read_text("utf-8"), re.DOTALL)
SCRIPTS = dict(BLOCKS)

# The interfaces of the original repositories, as far as the scripts use them. What computes behind is the
# plain stand-in (LLaDA, MMaDA), or sinklens (Dream): that the scripts speak the protocol is what is tested.
PLAIN = """
import json, types
from pathlib import Path
import torch
from reference_llada import forward, load_file

class PlainModel(torch.nn.Module):
    @classmethod
    def from_pretrained(cls, path, *, trust_remote_code, torch_dtype):
        self = cls()
        self.config = json.loads((Path(path) / "config.json").read_text())
        self.weights = load_file(Path(path) / "model.safetensors")
        return self

    def forward(self, ids):
        return types.SimpleNamespace(logits=forward(ids, self.weights, self.config))
"""
GENERATE = """
from reference_llada import sample

def generate(model, prompt, *, steps, gen_length, block_length, temperature, cfg_scale, remasking, mask_id):
    assert (temperature, cfg_scale, remasking) == (0.0, 0.0, "low_confidence")
    run = lambda ids: model(ids).logits
    return sample(prompt, run, mask_id, steps=steps, length=gen_length, block=block_length)[-1]
"""
DREAM = """
import types
import torch
import sinklens

class AutoModel(torch.nn.Module):
    @classmethod
    def from_pretrained(cls, path, *, trust_remote_code, torch_dtype):
        self = cls()
        self.inner = sinklens.load(path)
        return self

    def forward(self, ids):
        return types.SimpleNamespace(logits=self.inner(ids))

    def diffusion_generate(self, prompt, *, max_new_tokens, steps, alg, temperature, mask_token_id,
                           output_history, return_dict_in_generate):
        assert output_history and return_dict_in_generate
        sampler = sinklens.DreamSampler(steps=steps, length=max_new_tokens, alg=alg, temperature=temperature)
        made = sinklens.generate(self.inner, prompt, sampler)
        return types.SimpleNamespace(sequences=made.ids, history=tuple(made.canvases[1:]))
"""
STUBS = {
    "llada": {
        "transformers": "__version__ = 'stub'" + PLAIN + "\nAutoModel = PlainModel",
        "generate": GENERATE,
    },
    "mmada": {
        "transformers": "__version__ = 'stub'",
        "models": PLAIN + "\nMMadaModelLM = PlainModel",
        "generate": GENERATE,
    },
    "dream": {"transformers": "__version__ = 'stub'" + DREAM},
}


def test_the_reference_is_current() -> None:
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    assert page == render(), "run: python -m sinklens.cli.reference > docs/cli.md"


def test_the_reference_is_the_same_at_any_width(shell) -> None:
    import sys

    narrow = shell("env", "COLUMNS=40", "TERMINAL_WIDTH=40", sys.executable, "-m", "sinklens.cli.reference")
    assert narrow.returncode == 0, narrow.stderr
    assert narrow.stdout == render()


def test_every_option_has_a_meaning() -> None:
    rows = [line for line in render().splitlines() if line.startswith("| `")]
    assert len(rows) > 40
    assert [row for row in rows if row.rstrip(" |").endswith("|") or row.endswith("|  |")] == []


@pytest.mark.parametrize("family", sorted(STUBS))
def test_the_documented_script_speaks_the_protocol(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Path
) -> None:
    for name, source in STUBS[family].items():
        (tmp_path / f"{name}.py").write_text(source)
    script = tmp_path / f"reference_{family}_of_docs.py"
    script.write_text(SCRIPTS[f"reference_{family}"])
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{ROOT / 'src'}")
    certificate = verify(str(golden / family), Reference(script=script, timeout=120.0), to=tmp_path / "out")
    assert certificate["verdict"] == "agrees"
    assert [one["history"] for one in certificate["canvases"]] == [True] * 3
    assert certificate["versions"]["reference"]["transformers"] == "stub"


def test_the_first_example_of_the_page_runs(process, tmp_path: Path) -> None:
    (command,) = re.findall(r"^    sinklens (verify tests/.*)$", (ROOT / "docs" / "verify.md").read_text("utf-8"), re.M)
    done = process(*(ROOT / part if part.startswith("tests/") else part for part in command.split()))
    assert (done.returncode, done.stderr) == (0, "")
    assert "agrees with the reference" in done.stdout
    assert (tmp_path / "runs" / "verify-llada" / "certificate.json").exists()


def test_pages_say_how_to_get_at_the_program() -> None:
    for name in ("models", "sampling", "verify", "cli", "bring-your-own"):
        page = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
        assert page.count(". .venv/bin/activate") == 1, name
