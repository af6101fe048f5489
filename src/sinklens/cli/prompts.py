"""The prompts of one command line: from options, or from a file."""

from sinklens.errors import UsageError
from sinklens.sampling.prompt_list import Prompt, read_prompt_file

_SOURCES = ("--prompt", "--prompt-ids", "--prompts")


def collect_prompts(texts: list[str], ids: list[str], file: str | None) -> list[Prompt]:
    """Exactly one of the three sources must be used."""
    used = [name for name, given in zip(_SOURCES, (texts, ids, file), strict=True) if given]
    if len(used) != 1:
        came = f"got {' and '.join(used)}" if used else "got none of them"
        raise UsageError(f"give prompts with exactly one of {', '.join(_SOURCES)}; {came}")
    if texts:
        return [Prompt(text=text) for text in texts]
    if ids:
        return [Prompt(ids=_parse_ids(text)) for text in ids]
    assert file is not None
    return read_prompt_file(file)


def _parse_ids(text: str) -> tuple[int, ...]:
    try:
        ids = tuple(int(part) for part in text.replace(",", " ").split())
    except ValueError:
        raise UsageError(f"--prompt-ids {text!r} is no list of token ids; expected e.g. 1,2,3") from None
    if not ids:
        raise UsageError("--prompt-ids is empty; expected e.g. 1,2,3")
    return ids
