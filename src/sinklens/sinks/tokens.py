"""What kind of token lies under a sink, and how a token is shown.

The text is that of one id decoded alone. The first rule that fits decides:

    mask         the model's mask token
    special      a special or template token (end of turn, start of header, ...), or an id without any text
    word         bytes that are no whole character when decoded alone (U+FFFD)
    newline      white space with a line break
    space        other white space
    digit        digits only, white space around them aside
    punctuation  no letter and no digit: marks, symbols, brackets, with or without white space
    word         everything else
"""

import re
import unicodedata

CLASSES = ("mask", "newline", "punctuation", "space", "special", "digit", "word")

_TEMPLATE = re.compile(r"<[|\uff5c][^<>]*[|\uff5c]>")  # <|eot_id|> and its like, also where no flag says so
_LINE_BREAKS = frozenset("\n\r\v\f\x85\u2028\u2029")
_WORDLIKE = ("L", "M", "N")  # Unicode: letters, marks that belong to letters, numbers


def classify_token(text: str, *, special: bool = False, mask: bool = False) -> str:
    """One of CLASSES. `special` and `mask`: what the tokenizer and the model say about the id.

    >>> [classify_token(text) for text in ("\\n\\n", " ", ".", " 12", " sink", "<|eot_id|>")]
    ['newline', 'space', 'punctuation', 'digit', 'word', 'special']
    """
    if mask:
        return "mask"
    if special or not text or _TEMPLATE.fullmatch(text):
        return "special"
    if "\ufffd" in text:
        return "word"
    inner = text.strip()
    if not inner:
        return "space" if _LINE_BREAKS.isdisjoint(text) else "newline"
    kinds = {unicodedata.category(character)[0] for character in inner}
    if kinds == {"N"}:
        return "digit"
    return "word" if kinds.intersection(_WORDLIKE) else "punctuation"


def display(text: str) -> str:
    """The text with everything invisible made visible; two texts never look the same.

    >>> display(" the\\n")
    '␣the\\\\n'
    """
    return "".join(_visible(character) for character in text) or "∅"


def _visible(character: str) -> str:
    if character == " ":
        return "␣"
    if character in {"\\", "␣", "∅"} or not character.isprintable():
        return ascii(character)[1:-1]
    return character
