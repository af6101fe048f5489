"""Prompts as people keep them: texts, ids, conversations, or a file of them, in the order given.

Reading them needs no model; `encode_prompt` makes ids of one, in the model's chat format only when asked.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError
from sinklens.files import parse_json

LONGEST_NAME = 256


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt, in exactly one of the three forms."""

    text: str | None = None
    ids: tuple[int, ...] | None = None
    messages: tuple[dict[str, str], ...] | None = None

    def __post_init__(self) -> None:
        assert sum(form is not None for form in (self.text, self.ids, self.messages)) == 1


def as_prompts(given: Any) -> list[Prompt]:
    """What a caller calls prompts: a text, ids, a conversation, a list of these, or the path of a file.

    A string is a prompt; a file is given as a Path.
    """
    if isinstance(given, os.PathLike):
        return read_prompt_file(os.fspath(given))
    if isinstance(given, str) and len(given) < LONGEST_NAME and "\n" not in given and Path(given).is_file():
        raise UsageError(f"the prompt {given!r} is the name of a file; for the prompts in it pass Path({given!r})")
    if isinstance(given, str | Prompt) or _is_row(given) or _is_conversation(given):
        return [_as_prompt(given)]
    if hasattr(given, "tolist"):  # a tensor or an array of ids
        given = given.tolist()
        return as_prompts(given)
    if isinstance(given, Sequence) and given:
        return [_as_prompt(one.tolist() if hasattr(one, "tolist") else one) for one in given]
    raise UsageError(
        f"prompts is {given!r}; expected a text, a list of ids, a list of messages, a list of these, or a Path"
    )


def read_prompt_file(file: str) -> list[Prompt]:
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


def encode_prompt(model: Any, prompt: Prompt, *, chat: bool) -> list[int]:
    """Ids of one prompt; text goes through the chat format of the model when `chat` is set."""
    if prompt.ids is not None:
        if chat:
            raise UsageError("the chat format is for text, but the prompt is ids; leave one of the two out")
        return list(prompt.ids)
    if model.tokenizer is None:
        raise UsageError(
            f"the prompt is text, but {model.spec.source or 'this model'} has no tokenizer; give ids (--prompt-ids "
            "1,2,3 on the command line)"
        )
    for text in (prompt.text, *(message["content"] for message in prompt.messages or ())):
        spoken(text or "")
    if prompt.messages is not None or chat:
        messages = prompt.messages or ({"role": "user", "content": prompt.text or ""},)
        return [int(token) for token in model.chat(messages).tolist()]
    assert prompt.text is not None
    return list(model.tokenizer.encode(prompt.text))


def spoken(text: str) -> str:
    """The text, if UTF-8 can hold it: JSON and arguments in other encodings bring halves of characters, too."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the prompt has half a character at {error.start} ({text[error.start]!r}); expected text that UTF-8 can "
            "hold"
        ) from None
    return text


def _as_prompt(one: Any) -> Prompt:
    if isinstance(one, Prompt):
        return one
    if isinstance(one, str):
        return Prompt(text=one)
    if _is_row(one):
        return Prompt(ids=tuple(one))
    if _is_conversation(one):
        return Prompt(messages=tuple(dict(message) for message in one))
    raise UsageError(f"a prompt is {one!r}; expected a text, a list of integer ids, or a list of messages")


def _is_row(one: Any) -> bool:
    return isinstance(one, Sequence) and not isinstance(one, str) and bool(one) and all(type(i) is int for i in one)


def _is_conversation(one: Any) -> bool:
    return isinstance(one, Sequence) and not isinstance(one, str) and bool(one) and all(map(_is_message, one))


def _is_message(entry: Any) -> bool:
    return isinstance(entry, Mapping) and all(isinstance(entry.get(key), str) for key in ("role", "content"))


def _parse_object(line: str, where: str) -> Prompt:
    try:
        entry = parse_json(line)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}") from None
    match entry:
        case {"prompt": str(text)}:
            return Prompt(text=text)
        case {"prompt_ids": [*ids]} if _is_row(ids):
            return Prompt(ids=tuple(ids))
        case {"messages": [*messages]} if _is_conversation(messages):
            return Prompt(messages=tuple(messages))
    raise UsageError(
        f'{where} is no prompt; expected {{"prompt": "..."}}, {{"prompt_ids": [1, 2]}} or '
        f'{{"messages": [{{"role": "user", "content": "..."}}]}}'
    )
