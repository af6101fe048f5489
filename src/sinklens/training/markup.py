"""Pages written in reStructuredText or Markdown, turned into the text a reader sees.

Lines decide: a directive that only places things (a table of contents, an image, a generated reference) goes with its
body; one that says something (a note, a warning) keeps its words. Inline markup leaves its text. Then lines that are
no language go: rulers, tables, encoded data, numbers, lists of merged changes.
"""

import re

LONGEST_WORD = 60  # characters without a space; longer ones are paths or encoded data
LONGEST_ADDRESS = 120
# fmt: off
ENGLISH = frozenset((
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "this", "with", "be", "are", "as", "if", "you", "can",
    "from", "or", "not", "by", "will", "an", "on", "at", "which", "when", "has", "have", "was", "we", "all", "use",
    "used", "may", "but", "must", "should", "more", "than", "other", "your", "its", "no", "any", "only", "one", "new",
    "also", "so", "then", "these",
))
# fmt: on
SPOKEN = {
    "note": "Note:",
    "warning": "Warning:",
    "tip": "Tip:",
    "hint": "Hint:",
    "important": "Important:",
    "caution": "Caution:",
    "danger": "Danger:",
    "attention": "Attention:",
    "seealso": "See also:",
    "admonition": "",
    "versionadded": "New in version",
    "versionchanged": "Changed in version",
    "deprecated": "Deprecated since version",
    "rubric": "",
    "topic": "",
    "sidebar": "",
    "epigraph": "",
}
CODE = frozenset(
    {"code", "code-block", "sourcecode", "ipython", "testcode", "doctest", "console", "prompt", "parsed-literal"}
)

_DIRECTIVE = re.compile(r"^( *)\.\. +(?:([A-Za-z][\w:+.-]*?)::(?: +(.*))?|.*)$|^( *)\.\.$")
_OPTION = re.compile(r"^ *:[\w -]+:(?: .*)?$")
_ROLE_WITH_TARGET = re.compile(r":[\w:+.-]+:`([^`<>]{1,200}?)\s*<[^`<>]{0,300}>`")
_ROLE = re.compile(r":[\w:+.-]+:`[!~]?([^`]{1,200})`")
_LINK = re.compile(r"`([^`<>]{1,200}?)\s*<[^`<>]{0,300}>`__?")
_REFERENCE = re.compile(r"(?<!`)`([^`<>]{1,200})`__?(?!\w)")
_SUBSTITUTION = re.compile(r"\|([\w .-]+)\|_{0,2}")
_HTML = re.compile(r"<!--.*?-->|</?[a-zA-Z][^<>]*>", re.DOTALL)
_IMAGE = re.compile(r"!\[[^\[\]]*\]\([^()]*\)")
_MARKDOWN_LINK = re.compile(r"\[([^\[\]]*)\](?:\([^()\s]*(?:\([^()\s]*\))?[^()]*\)|\[[^\[\]]*\])")
_MARKDOWN_TARGET = re.compile(r"^ *\[[^\]]+\]: .*$|^ *:::.*$|^ *\{%.*%\} *$|^(?:import|export) .* from .*$")
_MERGED_CHANGE = re.compile(
    r"(?:#|\bGH-?|\bPR ?#?|:(?:pr|gh|pull|issue|ghpull|ghissue|bug|ticket|commit|user|author|feature)[\w:-]*:`)\d{2,}"
    r"|(?:github|launchpad|gitlab|bitbucket)\.\w+/\S*\d{2,}|\b[0-9a-f]{9,40}\b|^\s*[*-] .{3,40}\s\+?$(?<=\+)"
)
_MAIL = re.compile(r" ?[<(]?\b[\w.+-]+(?:@| at )[\w-]+\.[\w.-]*\w[>)]?")
_ITEM = re.compile(r"^\s*(?:[*+-]|\d+\.|#\.) ")
_TABLE = re.compile(r"^\s*(?:[|+].*[|+]|[=+~^\"'#*_:.-]{3,}(?:\s+[=~-]+)*|%%.*)\s*$")
_HEXADECIMAL = re.compile(r"(?:\b(?:0x)?[0-9a-fA-F]{2,8}\b[ ,:]*){8,}|(?:\\x[0-9a-fA-F]{2}){4,}")


def clean_page(text: str, *, markdown: bool) -> str:
    """`text` without markup and without lines that are no language; its paragraphs stay apart.

    >>> clean_page(".. image:: a.png\\n\\nSee :func:`~numpy.sum` now.", markdown=False).strip()
    'See `numpy.sum` now.'
    """
    if markdown:
        text = _MARKDOWN_LINK.sub(r"\1", _IMAGE.sub("", _HTML.sub("", _without_front_matter(text))))
        text = "\n".join(line for line in text.split("\n") if not _MARKDOWN_TARGET.match(line))
    else:
        text = _plain_inline("\n".join(_without_directives(text.split("\n"))))
    lines = _MAIL.sub("", text).split("\n")
    paragraphs = "\n".join(line for line in lines if is_language(line)).split("\n\n")
    return "\n\n".join(paragraph for paragraph in paragraphs if not _is_listing(paragraph))


def english_share(text: str) -> float:
    """Share of the words of `text` that are among the most common of English.

    >>> english_share("The cat is in the garden")
    0.6666666666666666
    """
    words = re.findall(r"[a-z]+", text.lower())
    return sum(word in ENGLISH for word in words) / max(1, len(words))


def is_language(line: str) -> bool:
    """False for a ruler, a table row, encoded data, mostly numbers, or an item that names a merged change.

    >>> [is_language(line) for line in ("=====", "| 1 | 2 |", "0.11 0.25 1e-05 77.1", "It ran 3 times.", "")]
    [False, False, False, True, True]
    """
    if not line or line.isspace():
        return True
    if _TABLE.match(line) or _HEXADECIMAL.search(line):
        return False
    if _ITEM.match(line) and _MERGED_CHANGE.search(line):
        return False
    if len(line) > LONGEST_WORD and any(
        len(word) > (LONGEST_ADDRESS if "://" in word else LONGEST_WORD) for word in line.split()
    ):
        return False
    marks = line.replace(" ", "")
    return len(marks) < 12 or sum(mark.isalpha() for mark in marks) >= 0.4 * len(marks)


def _is_listing(paragraph: str) -> bool:
    """Items without a sentence: names of people, options, modules."""
    lines = paragraph.strip("\n").split("\n")
    return len(lines) > 3 and all(map(_ITEM.match, lines)) and english_share(paragraph) < 0.05


def _without_front_matter(text: str) -> str:
    return re.sub(r"\A---\n.*?\n---\n", "", text, count=1, flags=re.DOTALL)


def _plain_inline(text: str) -> str:
    """Roles, references and substitutions of reStructuredText become the words they show."""
    text = _ROLE.sub(r"`\1`", _ROLE_WITH_TARGET.sub(r"\1", text))
    text = _SUBSTITUTION.sub(r"\1", _REFERENCE.sub(r"\1", _LINK.sub(r"\1", text)))
    text = re.sub(r"^ *::$", "", text.replace("``", "`"), flags=re.MULTILINE)
    return re.sub(r"::$", ":", text, flags=re.MULTILINE)


def _without_directives(lines: list[str]) -> list[str]:
    """Directives that say nothing go with their bodies; notes and code keep theirs, moved to the margin."""
    kept: list[str] = []
    i = 0
    while i < len(lines):
        match = _DIRECTIVE.match(lines[i])
        if match is None:
            kept.append(lines[i])
            i += 1
            continue
        indent = len(match[1] if match[1] is not None else match[4])
        end = i + 1
        while end < len(lines) and (not lines[end].strip() or _indent(lines[end]) > indent):
            end += 1
        name, argument = (match[2] or "").rpartition(":")[2].lower(), match[3] or ""
        body = lines[i + 1 : end]
        if name in SPOKEN:
            kept += ["", " " * indent + f"{SPOKEN[name]} {argument}".strip()]
            kept += _without_directives(_moved(body, indent))
        elif name in CODE:
            kept += ["", *_moved(body, indent + 4)]
        kept.append("")
        i = end
    return kept


def _moved(body: list[str], indent: int) -> list[str]:
    """The body of a directive without its options, starting in column `indent`."""
    while body and _OPTION.match(body[0]):
        body = body[1:]
    margin = min((_indent(line) for line in body if line.strip()), default=0)
    return [" " * indent + line[margin:] if line.strip() else "" for line in body]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
