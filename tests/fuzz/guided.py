"""Hostile bytes, guided by coverage: `python tests/fuzz/guided.py NAME RUNS`, with atheris. `make test-fuzz` runs all.

Where hypothesis changes what a document says, atheris changes its bytes, and keeps what reaches a new line of sinklens.
It begins with the corpus (kept.py), and some of what it finds is kept there. Every case has to hold as in held.py;
one that does not ends the run with its bytes in the corpus (crash-*).
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from fuzz import kept


def look(name: str, runs: int, scratch: Path) -> None:
    """In a process of its own: atheris ends it."""
    import atheris

    with atheris.instrument_imports(include=["sinklens"]):
        from fuzz import sound, targets

    made = sound.make_models(scratch)
    made["trace"] = sound.make_traces(scratch / "traces")["full"]
    folder = targets.place(name, made, scratch / "in" / "case")
    there = kept.FOLDER / name
    there.mkdir(parents=True, exist_ok=True)
    if not (there / "sound").exists():
        (there / "sound").write_bytes(targets.TARGETS[name][1](made))

    def once(data: bytes) -> None:
        targets.hold(name, data, folder, out=scratch / "out")

    print(f"guided: {name}, {runs} cases", flush=True)
    limits = [f"-runs={runs}", "-max_len=20000", "-timeout=0", "-rss_limit_mb=0", "-verbosity=0"]
    folders = [str(scratch / "found"), str(there)]  # what is found goes into the first
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={there}/", *folders], once)
    atheris.Fuzz()


def main(name: str, runs: str) -> int:
    with tempfile.TemporaryDirectory(prefix="sinklens-fuzz-") as scratch:
        found = Path(scratch) / "found"
        found.mkdir()
        done = subprocess.run([sys.executable, __file__, name, runs, scratch], check=False)
        print(f"guided: {name}, {kept.keep(name, found)} of {len(list(found.iterdir()))} kept", flush=True)
        return done.returncode


if __name__ == "__main__":
    if len(sys.argv) == 4:
        look(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
    else:
        sys.exit(main(*sys.argv[1:]))
