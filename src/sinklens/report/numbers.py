"""The numbers behind a figure: CSV with one observation a row, and LaTeX tables."""

import csv
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sinklens.files import written_whole

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "-": r"{-}",  # two of them would be drawn as one dash
    "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}",
    "␣": r"\textvisiblespace{}",
    "·": r"\textperiodcentered{}",
}


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """One line a row; the first row names the columns. Not a number and None are empty fields."""
    with written_whole(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        header: tuple[str, ...] | None = None
        for row in rows:
            if header is None:
                header = tuple(row)
                writer.writerow(header)
            assert tuple(row) == header
            writer.writerow([_cell(value) for value in row.values()])
    return path


def columns_to_rows(fixed: Mapping[str, Any], columns: Mapping[str, np.ndarray]) -> Iterable[dict[str, Any]]:
    """Rows of equally long columns, each with the same values of `fixed` in front."""
    lists = [np.asarray(column).ravel().tolist() for column in columns.values()]
    for values in zip(*lists, strict=True):
        yield {**fixed, **dict(zip(columns, values, strict=True))}


def _cell(value: Any) -> Any:
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{value:.9g}"  # nine digits give a float32 back as it was
    return "" if value is None else value


def latex(text: str) -> str:
    """Text that any LaTeX engine takes: specials escaped, and letters outside western Europe as their code."""
    return "".join(_LATEX.get(one) or (one if _typeset(one) else f"U+{ord(one):04X}") for one in text)


def _typeset(character: str) -> bool:
    """ASCII, or an ASCII letter with an accent: all that LaTeX's oldest font encoding can draw."""
    if character.isascii():
        return character.isprintable()
    return "\u00c0" <= character <= "\u00ff" and unicodedata.normalize("NFD", character)[0].isascii()


def write_latex(
    path: Path, *, columns: Sequence[tuple[str, str]], groups: Sequence[Sequence[Sequence[str]]], comment: str
) -> Path:
    """A booktabs table. columns: alignment and title; a rule stands between groups of rows; all is escaped already."""
    lines = [
        f"% {comment}",
        "% needs: \\usepackage{booktabs,textcomp}",
        f"\\begin{{tabular}}{{{''.join(align for align, _ in columns)}}}",
        "\\toprule",
        " & ".join(title for _, title in columns) + " \\\\",
    ]
    for rows in groups:
        lines.append("\\midrule")
        lines.extend(" & ".join(row) + " \\\\" for row in rows)
    lines += ["\\bottomrule", "\\end{tabular}", ""]
    with written_whole(path) as temporary:
        temporary.write_text("\n".join(lines), "utf-8", newline="\n")
    return path
