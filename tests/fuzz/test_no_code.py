"""Nothing that sinklens reads is run: no pickle, no eval, and code of a checkpoint only where the caller says so."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sinklens
import sinklens as sl
from fuzz.held import held, held_command
from fuzz.sound import BAIT, fresh
from sinklens.errors import ModelError

SOURCE = Path(sinklens.__file__).parent
PICKLING = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle", "yaml"}
RUNNING = {"eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec", "os.system", "os.popen"}
# They run inside the sandbox, on what a model wrote.
INSIDE = {"tasks/sandbox_driver.py", "tasks/humaneval_inside.py"}


def name_of(node: ast.expr) -> str:
    """`torch.load` of a call to it."""
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def is_true(call: ast.Call, name: str) -> bool:
    found = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    return isinstance(found, ast.Constant) and found.value is True


def runs_code(tree: ast.AST) -> Iterator[str]:
    """Every call and import that could run what a file holds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"import {name}" for name in names if name.split(".")[0] in PICKLING)
        if not isinstance(node, ast.Call):
            continue
        name = name_of(node.func)
        options = {keyword.arg for keyword in node.keywords}
        suspect = name in RUNNING or (name in ("np.load", "numpy.load") and "allow_pickle" in options)
        if suspect or (name == "torch.load" and not is_true(node, "weights_only")):
            yield name
        if "shell" in options:
            yield f"{name} with a shell"
        if is_true(node, "trust_remote_code"):
            yield f"{name} with trust_remote_code=True"


def test_no_line_runs_what_a_file_holds() -> None:
    found = {}
    for path in SOURCE.rglob("*.py"):
        name = str(path.relative_to(SOURCE))
        allowed = {"exec", "compile", "__import__"} if name in INSIDE else set()
        found[name] = set(runs_code(ast.parse(path.read_text("utf-8")))) - allowed
    assert not {name: calls for name, calls in found.items() if calls}
    assert found.keys() >= INSIDE


def test_the_scan_sees_what_it_looks_for() -> None:
    text = (
        "import pickle\nfrom dill import loads\neval('1')\nexec(x)\nos.system('ls')\ntorch.load(f)\n"
        "np.load(f, allow_pickle=True)\nsubprocess.run('ls', shell=True)\nfrom_pretrained(x, trust_remote_code=True)"
    )
    assert len(list(runs_code(ast.parse(text)))) == 9
    assert not list(runs_code(ast.parse("torch.load(f, weights_only=True)\nmodel.eval()\nre.compile('x')")))


AUTO_MAP = '{"model_type": "%s", "architectures": ["Evil"], "auto_map": {"AutoConfig": "configuration_evil.Evil"}}'


@pytest.mark.parametrize("model_type", ["llama", "evil"])
def test_code_of_a_checkpoint_needs_the_flag(model_type: str, models: dict[str, Path], tmp_path: Path) -> None:
    folder = fresh(models["llama"], tmp_path / "in" / "model")
    (folder / "config.json").write_text(AUTO_MAP % model_type)
    error = held(lambda: sl.load(folder), source=folder).error
    assert "names code of its own (auto_map), which is not run unasked" in str(error)
    for command in (["models", str(folder)], ["generate", str(folder), "--prompt", "w1", "--length", "1"]):
        left = held_command(*command, source=folder)
        assert left.code == 1
        assert "auto_map" in left.err


def test_with_the_flag_the_code_runs(models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the test above is one: the same folder, allowed, leaves its bait."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = fresh(models["llama"], tmp_path / "in" / "model")
    (folder / "config.json").write_text(AUTO_MAP % "evil")
    with pytest.raises(ModelError):
        sl.load(folder, trust_remote_code=True)
    assert (folder / BAIT).exists()


def test_a_tokenizer_that_names_code_does_not_run_it(models: dict[str, Path], tmp_path: Path) -> None:
    for family in ("llada", "dream", "llama"):
        folder = fresh(models[family], tmp_path / "in" / "model")
        settings = '{"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["tokenization_evil.Evil", null]}}'
        (folder / "tokenizer_config.json").write_text(settings)
        held(lambda folder=folder: sl.load(folder), source=folder)  # type: ignore[misc]


def test_weights_in_a_pickle_are_refused(models: dict[str, Path], tmp_path: Path) -> None:
    for family in ("llada", "llama"):
        folder = fresh(models[family], tmp_path / "in" / "model")
        (folder / "model.safetensors").unlink()
        error = held(lambda folder=folder: sl.load(folder), source=folder).error  # type: ignore[misc]
        assert "pickle, which runs code when it is loaded, is refused" in str(error)
