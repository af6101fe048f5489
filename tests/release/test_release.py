"""What has to agree before a release: versions, metadata, files that go into the wheel."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

import sinklens
from release.check_dist import NO_PART, SOURCE

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
CITATION = (ROOT / "CITATION.cff").read_text("utf-8")


def cited(field: str) -> str:
    (value,) = re.findall(rf"^{field}: (.*)$", CITATION, flags=re.MULTILINE)
    return value


def test_the_version_is_the_same_everywhere() -> None:
    version = PROJECT["project"]["version"]
    assert sinklens.__version__ == version == cited("version")
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)


def test_the_changelog_is_about_this_version_or_the_next() -> None:
    headings = re.findall(r"^## (\S+)(.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)
    versions = [Version(name) for name, _ in headings]
    assert versions == sorted(versions, reverse=True) and len(set(versions)) == len(versions)
    current = Version(sinklens.__version__)
    for version, (_, rest) in zip(versions, headings, strict=True):
        told = re.fullmatch(r" \((unreleased|\d{4}-\d\d-\d\d)\)", rest)
        assert told is not None, f"{version}: expected a date, or (unreleased)"
        assert told[1] == "unreleased" or version <= current


def test_the_citation_says_what_the_metadata_say() -> None:
    project = PROJECT["project"]
    assert (cited("title"), cited("license")) == (project["name"], project["license"])
    assert cited("abstract") == project["description"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", cited("date-released"))
    assert CITATION.startswith("cff-version: 1.2.0\n")


def test_every_file_of_the_package_goes_into_the_wheel() -> None:
    """By the patterns of pyproject.toml; `make dist` looks into the wheel itself."""
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["sinklens"]
    packed = {path for pattern in patterns for path in SOURCE.glob(pattern)}
    files = [path for path in SOURCE.rglob("*") if path.is_file() and not set(NO_PART) & set(path.parts)]
    assert [str(path) for path in files if path.suffix != ".py" and path not in packed] == []
    folders = {path.parent for path in files if path.suffix == ".py"}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []  # packages.find wants it


def test_the_wheel_stays_small() -> None:
    size = sum(path.stat().st_size for path in SOURCE.rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert size < 100_000_000


def test_the_program_is_an_entry_point_and_the_package_typed() -> None:
    assert PROJECT["project"]["scripts"] == {"sinklens": "sinklens.cli:main"}
    assert (SOURCE / "py.typed").is_file()


@pytest.mark.parametrize("name", ["make dist", "SHA256SUMS", "CITATION.cff", "CHANGELOG.md", "pyproject.toml"])
def test_the_checklist_names_what_there_is(name: str) -> None:
    assert name in (ROOT / "docs" / "releasing.md").read_text("utf-8")
