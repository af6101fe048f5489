"""Hostile names of models: none but a well-spelt hub id reaches the hub, and nothing is looked up elsewhere."""

from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import sinklens as sl
from fuzz.damage import texts
from fuzz.held import fuzzed, held, held_command
from sinklens.errors import ModelError, SinklensError
from sinklens.models.catalog import is_hub_id, locate_here
from sinklens.selection.backbone import wrap_backbone
from sinklens.selection.data import load_images
from sinklens.selection.folder import load_selector
from sinklens.selection.image_sources import is_on_the_hub

ODD = (
    "owner/name/extra",
    "owner/..",
    "../owner",
    "owner//name",
    "/owner/name",
    "owner/name\n",
    "owner/na me",
    "-o/name",
    "owner/.name",
    "owner/name.git",
    "owner/na--me",
    "owner/na..me",
    "https://huggingface.co/owner/name",
    "owner/name?x=1",
    "owner/name#x",
    "owner/name@main",
    "owner/n%2e%2e",
    "\xf6wner/name",
    "owner/nam\u0435",
    "datasets/owner/name",
    "o\x00/n",
    "~nobody-of-that-name",
    "~nobody-of-that-name/x",
    "x" * 300,
    "o/" + "n" * 300,
    "\ud800/x",
    "owner/name:8080",
    "C:\\x\\y",
)


def names() -> st.SearchStrategy[str]:
    spelt = st.from_regex(r"[\w.\-~@:%\\ ]{0,12}/?[\w.\-~@:%\\ ]{0,12}", fullmatch=True)
    return st.sampled_from(ODD) | texts() | spelt | st.builds("{}/{}".format, texts(), texts())


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the hub would be asked for; it is never asked."""
    import huggingface_hub

    seen: list[str] = []

    def snapshot_download(hub_id: str, **_: Any) -> str:
        seen.append(hub_id)
        raise OSError("no network in the tests")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return seen


@example(name="~nobody-of-that-name/x")  # RuntimeError of expanduser
@example(name="x" * 300)  # OSError: file name too long
@example(name="o/" + "n" * 300)
@given(name=names())
@fuzzed(90)
def test_names_of_models(name: str, asked: list[str]) -> None:
    asked.clear()
    outcome = held(lambda: sl.load(name))
    assert outcome.error is not None
    for one in asked:
        owner, _, model = one.partition("/")
        assert owner and model and "/" not in model and ".." not in one and len(one) <= 96
        assert all(letter.isascii() and (letter.isalnum() or letter in "._-") for letter in owner + model)


@given(name=names())
@fuzzed(30)
def test_names_of_models_on_the_command_line(name: str) -> None:
    held_command("models", f"--json={name}" if name.startswith("-") else name)


@given(name=names())
@fuzzed(30)
def test_names_of_backbones_and_selectors(name: str) -> None:
    for take in (wrap_backbone, load_selector):
        assert held(lambda take=take: take(name)).error is not None  # type: ignore[misc]


@given(name=names())
@fuzzed(60)
def test_names_of_sets_of_images(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for models: `datasets` hears well-spelt names alone."""
    asked: list[str] = []

    def get_dataset_split_names(hub_id: str, *_: Any, **__: Any) -> list[str]:
        asked.append(hub_id)
        raise OSError("no network in the tests")

    hub = SimpleNamespace(get_dataset_split_names=get_dataset_split_names)
    monkeypatch.setattr("sinklens.selection.image_sources.import_module", lambda _: hub)
    assert held(lambda: load_images(name)).error is not None
    assert all(is_hub_id(one) for one in asked)


@pytest.mark.parametrize("name", ODD)
def test_what_is_no_hub_id(name: str) -> None:
    assert not is_hub_id(name) and not is_on_the_hub(name)
    with pytest.raises(SinklensError):
        locate_here(name)


@given(revision=texts())
@fuzzed(30)
def test_revisions(revision: str, asked: list[str]) -> None:
    """A revision goes to the hub as it is said, where it looks like one."""
    asked.clear()
    assert held(lambda: sl.load("owner/name", revision=revision)).error is not None
    if asked:
        assert revision and "\0" not in revision and ".." not in revision and not revision.startswith("/")


def fits(name: str, patterns: list[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def test_a_download_is_pinned_and_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The commit that came is part of the model's source, and so of every trace and result."""
    import huggingface_hub

    commit = "0123456789abcdef0123456789abcdef01234567"
    wanted: dict[str, Any] = {}

    def snapshot_download(hub_id: str, **given: Any) -> str:
        wanted.update(given, hub_id=hub_id)
        folder = tmp_path / "models--owner--name" / "snapshots" / commit
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    from sinklens.models.catalog import locate

    located = locate("owner/name", revision=commit)
    assert located.source == f"owner/name@{commit}"
    assert wanted["revision"] == commit
    assert not [
        name for name in ("modeling.py", "model.bin", "model.pt", "x.pkl") if fits(name, wanted["allow_patterns"])
    ]
    locate("owner/name", code=True)
    assert fits("modeling.py", wanted["allow_patterns"])
    with pytest.raises(ModelError, match=r"has no config\.json"):
        sl.load("owner/name", revision=commit)
