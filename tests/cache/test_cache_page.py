"""The page on caches: its code runs, and its table has every order."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

from sinklens.cache.settings import ORDERS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cache.md").read_text()


def test_the_code_of_the_page_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(code, {})
    lengths, size, _ = printed.getvalue().splitlines()[:3]
    first, *_, last = map(int, lengths.strip("[]").split(","))
    assert last < first
    assert int(size) > 0


def test_the_page_has_every_order() -> None:
    table = PAGE.split("## Orders")[1].split("## Settings")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == ORDERS
