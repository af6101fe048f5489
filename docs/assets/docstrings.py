"""Docstrings and field comments of sinklens, as the reference shows them.

A docstring is prose with lines such as `seed: of the order "random"` for single arguments, and doctests; they become
a list and code. The fields of a dataclass are explained by the comments behind them; they become a list too.
"""

import re
from typing import Any

import griffe

ARGUMENT = re.compile(r"^(\w+(?:, \w+)*): (.*)$")
COMMENT = re.compile(r"\s#\s(?P<words>.+)$")


class Docstrings(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None and not obj.is_attribute:
            obj.docstring.value = readable(obj.docstring.value)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        if not any("dataclass" in str(one.value) for one in cls.decorators):
            return
        fields = [one for one in cls.members.values() if one.is_attribute and not one.name.startswith("_")]
        fields = [one for one in fields if "property" not in one.labels and one.annotation is not None]
        if fields:
            before = "" if cls.docstring is None else cls.docstring.value
            rows = "\n".join(_row(one) for one in fields)
            table = f"{before}\n\n| field | default | meaning |\n|---|---|---|\n{rows}"
            cls.docstring = griffe.Docstring(table, parent=cls)
        for one in fields:
            cls.del_member(one.name)


def readable(text: str) -> str:
    lines: list[str] = []
    state = "prose"
    for line in text.splitlines():
        argument = ARGUMENT.match(line)
        if line.startswith(">>>") and state != "code":
            lines += ["", "```python", line]
            state = "code"
        elif state == "code" and not line.strip():
            lines += ["```", ""]
            state = "prose"
        elif argument and state != "code":
            names = ", ".join(f"`{name}`" for name in argument[1].split(", "))
            lines += [*([""] if state == "prose" else []), f"- {names}: {argument[2]}"]
            state = "list"
        elif state == "list" and line.strip() and not line.startswith("    "):
            lines.append(f"    {line}")  # a wrapped line of the entry
        else:
            if state == "list" and not line.strip():
                state = "prose"
            lines.append(line)
    if state == "code":
        lines.append("```")
    return "\n".join(lines)


def _row(field: Any) -> str:
    if field.docstring is not None:
        meaning = " ".join(field.docstring.value.split())
    else:
        line = field.filepath.read_text("utf-8").splitlines()[field.lineno - 1]
        found = COMMENT.search(line)
        meaning = found["words"] if found else ""
    default = "" if field.value is None else _code(str(field.value))
    return f"| `{field.name}` | {default} | {meaning.replace('|', '&#124;')} |"


def _code(text: str) -> str:
    return "<code>" + text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "&#124;") + "</code>"
