"""Tokenizers and chat formats of the native families, without remote code.

The tokenizer classes are named outright: AutoTokenizer would ask on stdin whether to run the code that these
checkpoints' config.json names. A chat format is data: the text around each message.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinklens.errors import ModelError, UsageError
from sinklens.models.fields import read_json

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, kw_only=True)
class ChatFormat:
    """opening, then `turn` for every message, then `reply`, where the answer begins."""

    turn: str  # with {role} and {content}
    reply: str
    marks: tuple[str, ...]  # what must be single tokens, or the text means something else to the model
    opening: str = ""
    system: str | None = None  # said first where the conversation does not begin with a system message
    strip: bool = False  # blanks around the content are dropped

    # Messages come from callers: annotated as anything, because they are checked here, with a message.
    def render(self, messages: Sequence[Any]) -> str:
        """The text of a conversation."""
        if not messages:
            raise UsageError('no messages; expected at least one, such as {"role": "user", "content": "Hello"}')
        turns = [_read(message) for message in messages]
        if self.system is not None and turns[0][0] != "system":
            turns.insert(0, ("system", self.system))
        text = "".join(
            self.turn.format(role=role, content=content.strip() if self.strip else content) for role, content in turns
        )
        return self.opening + text + self.reply

    def encode(self, messages: Sequence[Any], tokenizer: Any, *, source: str) -> list[int]:
        """Its ids."""
        if tokenizer is None:
            raise ModelError(
                f"{source or 'this model'} came without tokenizer files, so it cannot chat; "
                "put them beside config.json, or give ids"
            )
        known = tokenizer.get_vocab()
        missing = [mark for mark in self.marks if mark not in known]
        if missing:
            raise ModelError(
                f"the tokenizer of {source or 'this model'} has no token {', '.join(missing)}, which its "
                "chat format needs; use its own tokenizer files, or give ids"
            )
        ids: list[int] = tokenizer.encode(self.render(messages), add_special_tokens=False)
        return ids


def _read(message: Any) -> tuple[str, str]:
    """Role and content of a message."""
    try:
        role, content = message["role"], message["content"]
    except (KeyError, TypeError):
        raise UsageError(f"message {message!r}; expected a mapping with 'role' and 'content'") from None
    if role not in ROLES or not isinstance(content, str):
        raise UsageError(f"message {message!r}; expected a text content and one of the roles {', '.join(ROLES)}")
    return role, content


def fast_tokenizer(folder: Path) -> Any:
    """The tokenizer.json of a folder; None when there is none."""
    if not (folder / "tokenizer.json").is_file():
        return None
    from transformers import PreTrainedTokenizerFast

    return _from_folder(PreTrainedTokenizerFast, folder)


def qwen2_tokenizer(folder: Path) -> Any:
    """Qwen2's byte-level BPE, from tokenizer.json or vocab.json and merges.txt; None without either.

    A folder whose tokenizer_config.json names the plain class has a tokenizer.json that says all: Qwen2's class would
    put its own splitting and its own beginning in the place of what the file says.
    """
    settings = folder / "tokenizer_config.json"
    if settings.is_file() and read_json(settings).get("tokenizer_class") == "PreTrainedTokenizerFast":
        return fast_tokenizer(folder)
    files = {name for name in ("tokenizer.json", "vocab.json", "merges.txt") if (folder / name).is_file()}
    if "tokenizer.json" not in files and not {"vocab.json", "merges.txt"} <= files:
        return None
    from transformers import Qwen2Tokenizer

    return _from_folder(Qwen2Tokenizer, folder)


def _from_folder(kind: Any, folder: Path) -> Any:
    try:
        return kind.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # the tokenizers library raises bare Exception
        raise ModelError(
            f"the tokenizer files in {folder} cannot be read ({error}); download them again, or remove them "
            "to work with ids alone"
        ) from error


def token_id(tokenizer: Any, token: str) -> int | None:
    """The id of a token, where the tokenizer has it."""
    found = None if tokenizer is None else tokenizer.get_vocab().get(token)
    return None if found is None else int(found)
