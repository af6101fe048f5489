"""Text on its way into pictures, tables and files: any token may come."""

import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from report.conftest import read_csv
from sinklens.report.numbers import columns_to_rows, latex, write_csv, write_latex
from sinklens.report.style import escape_missing, new_figure, plain_count, printable, save, styled

COMMANDS = re.compile(r"\\(?:text[a-z]+\{\}|[{}$&#%_])|\{-\}")


@settings(max_examples=300, deadline=None)
@given(st.text())
def test_latex_leaves_no_special_character(text: str) -> None:
    rest = COMMANDS.sub("", latex(text))
    assert not set(rest) & set("\\{}$&#%_^~<>|`'-")
    assert all((one.isascii() and one.isprintable()) or "\u00c0" <= one <= "\u00ff" for one in rest)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b & 5% #1", r"a\_b \& 5\% \#1"),
        ("$x^2$", r"\$x\textasciicircum{}2\$"),
        ("\\n", r"\textbackslash{}n"),
        ("␣the", r"\textvisiblespace{}the"),
        ("--", "{-}{-}"),
        ("<|eot|>", r"\textless{}\textbar{}eot\textbar{}\textgreater{}"),
        ("café", "café"),
        ("ð中", "U+00F0U+4E2D"),
    ],
)
def test_latex_known(text: str, expected: str) -> None:
    assert latex(text) == expected


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=12))
def test_printable_is_short_and_visible(text: str) -> None:
    shown = printable(text)
    assert 0 < len(shown) <= 11
    assert not any(unicodedata.category(one)[0] in "CZ" for one in shown)


def test_printable_known() -> None:
    assert printable(" the\n") == r"␣the\n"
    assert printable("中") == "U+4E2D"
    assert printable("<|start_header_id|>") == "<|start_he…"
    assert escape_missing("模a") == "U+6A21a"
    assert escape_missing("\u200ba\x07") == "U+200BaU+0007"


@settings(max_examples=20, deadline=None)
@given(st.text(max_size=40))
def test_any_token_can_be_drawn(text: str) -> None:
    """Warnings are errors here: a glyph that the font lacks would be one, and so would a lone dollar sign."""
    with styled():
        figure = new_figure(width=2.0, height=1.0)
        figure.text(0.5, 0.5, printable(text))
        figure.canvas.draw()


def test_a_formula_is_drawn_as_it_is_written() -> None:
    with styled():
        figure = new_figure(width=2.0, height=1.0)
        figure.text(0.5, 0.5, printable(r"$\fr$"))
        figure.text(0.5, 0.5, r"$\frac$")  # no formula: an error if it were read as one
        figure.canvas.draw()


def test_comments_of_a_drawing_stay_comments(tmp_path: Path) -> None:
    from xml.etree import ElementTree

    with styled():
        figure = new_figure(width=2.0, height=1.0)
        figure.text(0.5, 0.5, "--> <!-- & --")
        _, svg = save(figure, tmp_path, name="odd")
    ElementTree.fromstring(svg.read_text("utf-8"))


def test_counts_on_a_logarithmic_axis() -> None:
    assert [plain_count(10.0**power) for power in range(-1, 8)] == [
        "0.1", "1", "10", "100", "10³", "10⁴", "10⁵", "10⁶", "10⁷",
    ]  # fmt: skip
    assert plain_count(0.0) == ""


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(width=32, allow_infinity=False), min_size=1))
def test_a_float32_comes_back_from_csv(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    numbers = np.array(values, np.float32)
    path = tmp_path_factory.mktemp("csv") / "numbers.csv"
    write_csv(path, columns_to_rows({"unit": 'a, "b"\n'}, {"value": numbers}))
    back = read_csv(path)
    assert {row["unit"] for row in back} == {'a, "b"\n'}
    again = np.array([float(row["value"] or "nan") for row in back], np.float32)
    np.testing.assert_array_equal(again, numbers)


def test_cells_of_every_kind(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", [{"a": True, "b": None, "c": np.bool_(False), "d": np.float32("nan"), "e": 3}])
    assert path.read_text() == "a,b,c,d,e\ntrue,,false,,3\n"


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", [{"a": 1}])

    def broken() -> object:
        yield {"a": 2}
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        write_csv(path, broken())  # type: ignore[arg-type]
    assert path.read_text() == "a\n1\n"
    assert [one.name for one in tmp_path.iterdir()] == ["a.csv"]


def test_a_latex_table(tmp_path: Path) -> None:
    path = write_latex(
        tmp_path / "t.tex",
        columns=[("l", "A"), ("r", "B")],
        groups=[[["a", "1"], ["", "2"]], [["b", "3"]]],
        comment="what",
    )
    assert path.read_text() == "\n".join(
        [
            "% what",
            r"% needs: \usepackage{booktabs,textcomp}",
            r"\begin{tabular}{lr}",
            r"\toprule",
            r"A & B \\",
            r"\midrule",
            r"a & 1 \\",
            r" & 2 \\",
            r"\midrule",
            r"b & 3 \\",
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )
