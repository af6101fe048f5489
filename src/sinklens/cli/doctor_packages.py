"""The packages that `sinklens doctor` looks at: those that sinklens always needs, and those that some commands need."""

import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from sinklens.cli.doctor_checks import ABSENT, OK, WRONG, Finding, told


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package that sinklens does without until something needs it."""

    name: str  # as pip knows it
    module: str
    gives: str
    install: str
    extra: str | None = None  # of pyproject.toml
    tried: bool = True  # False: to import it would change other packages


PACKAGES = (
    Package(name="lm-eval", module="lm_eval", gives="sinklens lm-eval", install="lm-eval>=0.4.13", extra="eval"),
    Package(name="ray", module="ray", gives="sinklens sweep --on ray", install="ray>=2.30", extra="ray"),
    Package(
        name="anywidget", module="anywidget", gives="sl.explore in a notebook", install="anywidget>=0.9",
        extra="notebook",
    ),
    Package(
        name="kvpress", module="kvpress", gives="orders as its presses, in an environment with transformers below 5.3",
        install="kvpress==0.5.5", extra="kvpress", tried=False,
    ),
    Package(name="accelerate", module="accelerate", gives="--device auto; GGUF files", install="accelerate>=0.34"),
    Package(name="gguf", module="gguf", gives="models in GGUF files", install="gguf"),
    Package(name="datasets", module="datasets", gives="images and texts of the hub", install="datasets"),
    Package(
        name="scikit-learn", module="sklearn", gives="the digits of sinklens select", install="scikit-learn>=1.4"
    ),
)  # fmt: skip
CORE = (
    "torch", "transformers", "safetensors", "numpy", "jaxtyping", "pyarrow", "typer", "rich", "matplotlib", "pillow",
    "scipy",
)  # fmt: skip
MODULES = {"pillow": "PIL"}  # where the name to import is another one


def versions() -> Iterator[Finding]:
    """sinklens, Python, and every package that sinklens always needs."""
    from sinklens import __version__

    place = Path(__file__).parents[1]
    yield Finding(part="versions", name="sinklens", state=OK, says=f"{__version__} in {place}")
    yield Finding(part="versions", name="python", state=OK, says=f"{platform.python_version()}, {platform.platform()}")
    floors = _floors()
    for name in CORE:
        yield _core(name, floors.get(name))


def _core(name: str, floor: str | None) -> Finding:
    found = _version(name)
    asked = "" if floor is None else f">={floor}"
    if found is None:
        return Finding(part="versions", name=name, state=WRONG, says="not installed", do=f"pip install '{name}{asked}'")
    if floor is not None and _numbers(found) < _numbers(floor):
        says = f"{found}, but sinklens needs {floor} or newer"
        return Finding(part="versions", name=name, state=WRONG, says=says, do=f"pip install '{name}{asked}'")
    if (trouble := _import_trouble(MODULES.get(name, name))) is not None:
        do = f"install {name} again"
        return Finding(part="versions", name=name, state=WRONG, says=f"{found} {trouble}", do=do)
    return Finding(part="versions", name=name, state=OK, says=found)


def _import_trouble(module: str) -> str | None:
    """Why a package that is installed cannot be imported, such as a library of the system that it misses."""
    try:
        import_module(module)
    except Exception as error:
        return f"cannot be imported ({told(error)})"
    return None


def _floors() -> dict[str, str]:
    """What the installed package asks for; nothing where it runs from its source alone."""
    try:
        asked = requires("sinklens") or []
    except PackageNotFoundError:
        return {}
    plain = [line.partition(">=") for line in asked if ";" not in line]
    return {name.strip().lower(): floor.strip() for name, _, floor in plain if floor}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        module = sys.modules.get(MODULES.get(name, name))
        return getattr(module, "__version__", None)


def _numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: 2.13.0+cpu is (2, 13, 0)."""
    found: list[int] = []
    for part in text.split("+", maxsplit=1)[0].split("."):
        if not part.isdigit():
            break
        found.append(int(part))
    return tuple(found)


def extras() -> Iterator[Finding]:
    """Packages that only some commands need."""
    for one in PACKAGES:
        if find_spec(one.module) is None:
            do = f"pip install '{one.install}'"
            yield Finding(part="extras", name=one.name, state=ABSENT, says=f"needed for: {one.gives}", do=do)
            continue
        found = _version(one.name) or "installed"
        trouble = _import_trouble(one.module) if one.tried else None
        if trouble is None:
            yield Finding(part="extras", name=one.name, state=OK, says=f"{found}: {one.gives}")
        else:
            do = f"install {one.name} again"
            yield Finding(part="extras", name=one.name, state=WRONG, says=f"{found} {trouble}", do=do)
