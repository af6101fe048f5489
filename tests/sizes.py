"""Print the largest modules, so that growth is seen: `python tests/sizes.py`."""

from pathlib import Path

ROOT = Path(__file__).parents[1]

sizes = sorted(
    ((len(p.read_text().splitlines()), p.relative_to(ROOT)) for p in (ROOT / "src").rglob("*.py")), reverse=True
)
total = sum(size for size, _ in sizes)
print(f"{len(sizes)} modules, {total} lines; the largest:")
for size, path in sizes[:6]:
    print(f"{size:5d}  {path}")
