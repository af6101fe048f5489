"""The code blocks of the documentation: which there are, which run, and how.

Blocks in ```python and ```bash run, page by page and in their order. A fence without a language that begins with a
command is a shell block too, and so are indented lines. What stands in comments of a page:

    <!-- not run: REASON -->   before a block: it is skipped, and the reason is in the summary
    <!-- run python            code that readers do not see, such as files that a page takes for granted
    code
    -->
    <!-- printed -->           before ```output: what the last block printed, `...` standing for anything

A ```console block holds both: commands behind $, and what they print.
"""

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
import types
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
COMMAND = re.compile(r"^(\$ |\. |[A-Z_]+=\S+ )*(sinklens|python|python3|make|pip|cd|export|sudo) ")
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^`]*$")
HIDDEN = re.compile(r"^(?P<indent>)<!-- run (?P<language>python|bash)$")
SKIP = re.compile(r"^ *<!-- not run: (?P<reason>.+) -->$")
PRINTED = re.compile(r"^ *<!-- printed -->$")
SECONDS = 420.0  # of one shell block


@dataclass(frozen=True, kw_only=True)
class Block:
    page: str  # relative to docs/
    line: int  # of its first line of code, from 1
    language: str  # "python", "bash", or another that does not run
    code: str
    skip: str | None = None
    printed: str | None = None

    @property
    def runs(self) -> bool:
        return self.language in {"python", "bash"}

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    return sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


@cache  # a page that is edited meanwhile stays as it was collected
def blocks_of(page: str, text: str | None = None) -> list[Block]:
    """All blocks of a page in their order, hidden ones included."""
    lines = ((DOCS / page).read_text("utf-8") if text is None else text).splitlines()
    found: list[Block] = []
    number, mark = 0, ""
    while number < len(lines):
        line = lines[number]
        if opening := FENCE.match(line) or HIDDEN.match(line):
            indent = opening["indent"]
            closing = "-->" if opening.re is HIDDEN else f"{indent}```"
            stop = next(at for at in range(number + 1, len(lines)) if lines[at].rstrip() == closing)
            code = "\n".join(one[len(indent) :] for one in lines[number + 1 : stop]) + "\n"
            if PRINTED.match(mark):
                found[-1] = replace(found[-1], printed=code)
            else:
                found.append(_block(page, number + 2, opening["language"], code, mark))
            number = stop
        elif line.startswith("    ") and COMMAND.match(line[4:]) and (number == 0 or not lines[number - 1].strip()):
            stop = next((at for at in range(number, len(lines)) if not lines[at].startswith("    ")), len(lines))
            code = "\n".join(one[4:] for one in lines[number:stop]) + "\n"
            found.append(_block(page, number + 1, "bash", code, mark))
            number = stop - 1
        if line.strip():
            mark = line
        number += 1
    return found


def _block(page: str, line: int, language: str, code: str, mark: str) -> Block:
    found = SKIP.match(mark)
    skip = found["reason"] if found else None
    if language == "console":  # commands behind $, and what they print
        lines = code.splitlines(keepends=True)
        commands = "".join(one[2:] for one in lines if one.startswith("$ "))
        printed = "".join(one for one in lines if not one.startswith("$ "))
        return Block(page=page, line=line, language="bash", code=commands, skip=skip, printed=printed)
    if not language and COMMAND.match(code):
        language = "bash"
    return Block(page=page, line=line, language=language, code=code, skip=skip)


@dataclass(kw_only=True)
class Page:
    """One page being run: a folder that looks like the repository, and one module for its Python."""

    name: str
    folder: Path
    module: types.ModuleType = field(init=False)
    _done: dict[int, str] = field(default_factory=dict)  # by line: what was printed

    def __post_init__(self) -> None:
        for shared in (".venv", "benchmarks", "docs", "examples", "src", "tests"):
            if (ROOT / shared).exists():
                (self.folder / shared).symlink_to(ROOT / shared)
        self.module = types.ModuleType("page_" + re.sub(r"\W", "_", self.name))
        sys.modules[self.module.__name__] = self.module  # dataclasses look their module up

    def run(self, block: Block) -> str:
        """What the block prints; what comes before it on the page runs first, once."""
        for earlier in blocks_of(self.name):
            if earlier.line > block.line:
                break
            if earlier.runs and earlier.skip is None and earlier.line not in self._done:
                self._done[earlier.line] = self._execute(earlier)
        return self._done[block.line]

    def _execute(self, block: Block) -> str:
        if block.language == "bash":
            return self._shell(block)
        printed, before = io.StringIO(), Path.cwd()
        code = compile("\n" * (block.line - 1) + block.code, str(DOCS / block.page), "exec")
        os.chdir(self.folder)
        try:
            with contextlib.redirect_stdout(printed):
                exec(code, self.module.__dict__)
        finally:
            os.chdir(before)
        return printed.getvalue()

    def _shell(self, block: Block) -> str:
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "COLUMNS": "110",
            "NO_COLOR": "1",
        }
        done = subprocess.run(
            ["bash", "-eu", "-c", block.code],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"{block.name} ends with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def same(wanted: str, got: str) -> bool:
    """Whether the output is what the page shows; spaces at the ends of lines aside."""
    tidy = ["\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n" for text in (wanted, got)]
    return doctest.OutputChecker().check_output(*tidy, doctest.ELLIPSIS)
