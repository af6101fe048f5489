"""Every Python and shell block of the documentation runs, and prints what its page says it prints.

`make docs` runs them all; `make test` the pages of SAMPLE. What is not run is skipped with the reason on its page.
"""

import pytest
from doc_blocks import Block, Page, blocks_of, pages, same

SAMPLE = {"explanation/exact-sums.md", "explanation/units.md", "howto/own-metric.md", "metrics.md"}
ELSEWHERE = {  # pages that are written by a program or hold the commands of long measurements
    "cli.md": "made from --help; tests/cli reads its examples",
    "selection.md": "trains for minutes; tests/cli/test_select_command.py runs the commands",
    "performance.md": "benchmarks of minutes each; the page holds what they print",
    "results/": "hours on a GPU; the page holds what came out",
}


def reason(block: Block) -> str | None:
    return block.skip or next((why for page, why in ELSEWHERE.items() if block.page.startswith(page)), None)


def cases() -> list[object]:
    made: list[object] = []
    for page in pages():
        for block in blocks_of(page):
            if block.runs:
                marks = [] if page in SAMPLE else [pytest.mark.docs]
                if why := reason(block):
                    marks = [pytest.mark.docs, pytest.mark.skip(reason=f"not run: {why}")]
                made.append(pytest.param(block, id=block.name, marks=marks))
    return made


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    return {
        page: Page(name=page, folder=tmp_path_factory.mktemp(page.replace("/", "-").removesuffix(".md")))
        for page in pages()
    }


@pytest.mark.parametrize("block", cases())
def test_a_block_runs(block: Block, opened: dict[str, Page]) -> None:
    printed = opened[block.page].run(block)
    if block.printed is not None:
        assert same(block.printed, printed), f"{block.name} prints\n{printed}\nand its page says\n{block.printed}"


TEXT = """\
```
sinklens demo
```

<!-- run python
x = 1
-->

```python
print(x)
```
<!-- printed -->
```output
1
```

<!-- not run: needs a GPU -->
```bash
sinklens bench
```

    make test

```
no command
```
"""


def test_blocks_are_found() -> None:
    found = blocks_of("x.md", TEXT)
    assert [(one.language, one.line) for one in found] == [
        ("bash", 2),
        ("python", 6),
        ("python", 10),
        ("bash", 19),
        ("bash", 22),
        ("", 25),
    ]
    assert found[2].printed == "1\n"
    assert [one.skip for one in found if one.skip] == ["needs a GPU"]


def test_output_is_compared() -> None:
    assert same("a ...\nb", "a 17 \nb\n")
    assert not same("a ...\nb", "a 17\nc\n")
