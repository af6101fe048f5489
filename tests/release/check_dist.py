"""Are wheel and sdist what a user needs? `make dist` runs this on the files, and on the wheel once it is installed.

python tests/release/check_dist.py dist                    # what is in the files
python tests/release/check_dist.py dist --python PYTHON    # and what the installed program does, from elsewhere
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from email.parser import Parser
from pathlib import Path

MOST_BYTES = 100_000_000  # of a wheel
SOURCE = Path(__file__).parents[2] / "src" / "sinklens"
NO_PART = ("__pycache__",)


def check_wheel(wheel: Path) -> str:
    """Every file of the package is in it, with marker, entry point and metadata; nothing else is."""
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        (about,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(opened.read(about).decode())
        entries = opened.read(about.replace("METADATA", "entry_points.txt")).decode()
    ours = {
        f"sinklens/{path.relative_to(SOURCE).as_posix()}"
        for path in SOURCE.rglob("*")
        if path.is_file() and not set(NO_PART) & set(path.parts)
    }
    missing = sorted(ours - names)
    strange = sorted(name for name in names - ours if ".dist-info/" not in name)
    assert not missing, f"not in the wheel: {missing}; see [tool.setuptools.package-data] in pyproject.toml"
    assert not strange, f"in the wheel, and not in the package: {strange}"
    assert "sinklens/py.typed" in names
    assert "sinklens = sinklens.cli:main" in entries, entries
    assert any(name.endswith("licenses/LICENSE") for name in names), "no licence"
    assert wheel.stat().st_size < MOST_BYTES, f"{wheel.stat().st_size} bytes"
    return f"{wheel.name}: version {metadata['Version']}, {len(ours)} files, {wheel.stat().st_size / 1e6:.1f} MB"


def check_sdist(sdist: Path) -> str:
    """The package can be built from it, and what a reader looks for first is there."""
    with tarfile.open(sdist) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    wanted = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "src/sinklens/py.typed"}
    wanted |= {"constraints.txt", "examples/see_sinks.py", "src/sinklens/zoo/tiny-llada/model.safetensors"}
    assert not wanted - names, f"not in the sdist: {sorted(wanted - names)}; see MANIFEST.in"
    return f"{sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB"


def check_installed(python: Path) -> list[str]:
    """The program of an environment that has nothing but the wheel and what it needs, in an empty folder."""
    said = []
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    with tempfile.TemporaryDirectory() as folder:

        def run(*command: str) -> str:
            began = time.monotonic()
            done = subprocess.run(
                [str(python.parent / command[0]), *command[1:]],
                capture_output=True,
                text=True,
                cwd=folder,
                env=clean,
                check=False,
            )
            assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
            said.append(f"{' '.join(command)}: ok, {time.monotonic() - began:.0f} s")
            return done.stdout

        place = run(python.name, "-c", "import sinklens; print(sinklens.__file__)")
        assert "site-packages" in place, f"not the installed package: {place}"
        health = json.loads(run("sinklens", "doctor", "--json"))
        assert health["ok"], health
        assert "tiny-llada" in run("sinklens", "models")
        demo = json.loads(run("sinklens", "demo", "--quick", "--json", "--quiet"))
        assert demo["complete"] and len(demo["answers"]) == 3, demo
        run("sinklens", "sinks", "runs/demo/traces/tiny-llada")
        run("sinklens", "select", "show", "--to", "runs/show")
    return said


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("dist", type=Path)
    parser.add_argument("--python", type=Path, help="of the environment that the wheel was installed into")
    asked = parser.parse_args()
    (wheel,), (sdist,) = (list(asked.dist.glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
    print(check_wheel(wheel), check_sdist(sdist), sep="\n")
    if asked.python is not None:
        print(*check_installed(asked.python.absolute()), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
