"""What to continue: prompts as text, ids or messages, from options or from a file, in the order given."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt, in exactly one of the three forms."""

    text: str | None = None
    ids: tuple[int, ...] | None = None
    messages: tuple[dict[str, str], ...] | None = None

    def __post_init__(self) -> None:
        assert sum(form is not None for form in (self.text, self.ids, self.messages)) == 1


def collect_prompts(texts: list[str], ids: list[str], file: str | None) -> list[Prompt]:
    """The prompts of one command line; exactly one of the three sources must be used."""
    used = [name for name, given in zip(_SOURCES, (texts, ids, file), strict=True) if given]
    if len(used) != 1:
        came = f"got {' and '.join(used)}" if used else "got none of them"
        raise UsageError(f"give prompts with exactly one of {', '.join(_SOURCES)}; {came}")
    if texts:
        return [Prompt(text=text) for text in texts]
    if ids:
        return [Prompt(ids=_parse_ids(text)) for text in ids]
    assert file is not None
    return read_prompts(file)


_SOURCES = ("--prompt", "--prompt-ids", "--prompts")


def read_prompts(file: str) -> list[Prompt]:
    """One prompt a line, or one JSON object a line if the name ends in .jsonl; `-` reads lines of stdin."""
    try:
        content = sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the prompts of {file}: {error}; give a UTF-8 text file") from None
    lines = [(number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip()]
    if not lines:
        raise UsageError(f"{file} holds no prompt; write one a line")
    if Path(file).suffix == ".jsonl":
        return [_parse_object(line, f"line {number} of {file}") for number, line in lines]
    return [Prompt(text=line) for _, line in lines]


def _parse_ids(text: str) -> tuple[int, ...]:
    try:
        ids = tuple(int(part) for part in text.replace(",", " ").split())
    except ValueError:
        raise UsageError(f"--prompt-ids {text!r} is no list of token ids; expected e.g. 1,2,3") from None
    if not ids:
        raise UsageError("--prompt-ids is empty; expected e.g. 1,2,3")
    return ids


def _parse_object(line: str, where: str) -> Prompt:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where} is not JSON: {error}") from None
    match entry:
        case {"prompt": str(text)}:
            return Prompt(text=text)
        case {"prompt_ids": [*ids]} if ids and all(type(number) is int for number in ids):
            return Prompt(ids=tuple(ids))
        case {"messages": [*messages]} if messages and all(map(_is_message, messages)):
            return Prompt(messages=tuple(messages))
    raise UsageError(
        f'{where} is no prompt; expected {{"prompt": "..."}}, {{"prompt_ids": [1, 2]}} or '
        f'{{"messages": [{{"role": "user", "content": "..."}}]}}'
    )


def _is_message(entry: Any) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("role", "content"))
