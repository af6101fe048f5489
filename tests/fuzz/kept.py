"""Bytes that are kept, in tests/fuzz/corpus/NAME: a sound file, some that guided.py found, and every one that broke us.

`make test` replays them all (test_fuzz_corpus.py). A file crash-* is what guided.py leaves of a case that does not
hold: mend sinklens, then keep the file.
"""

from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"
FILES = 24  # of a name, that guided.py may keep
LARGEST, BYTES = 4_000, 16_000  # of one of them; of all of a name
TOTAL = 200_000  # bytes of the whole corpus


def cases(name: str) -> list[Path]:
    return sorted(path for path in (FOLDER / name).iterdir() if path.is_file())


def keep(name: str, found: Path) -> int:
    """Some of what was found, from the first to the last of it, as far as there is room; how many were kept."""
    there = [path for path in cases(name) if path.name != "sound"]
    room, bytes_left = FILES - len(there), BYTES - sum(path.stat().st_size for path in there)
    new = [path for path in found.iterdir() if not (FOLDER / name / path.name).exists()]
    small = sorted((path for path in new if path.stat().st_size <= LARGEST), key=lambda path: path.stat().st_mtime_ns)
    kept = 0
    for path in small[:: max(1, -(-len(small) // max(1, room)))][: max(0, room)]:
        bytes_left -= path.stat().st_size
        if bytes_left < 0:
            break
        (FOLDER / name / path.name).write_bytes(path.read_bytes())
        kept += 1
    return kept
