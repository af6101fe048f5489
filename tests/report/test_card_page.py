"""A card written down: every number where it belongs, any token as text, and one picture."""

import re
from copy import deepcopy
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from report.test_card_cells import rows_of
from sinklens.report.card_cells import ACCURACY, NLL, read_value_effect, summarise_cells
from sinklens.report.card_figure import draw_card
from sinklens.report.card_formats import citation, identity, write_html, write_markdown, write_table
from sinklens.report.card_numbers import numbers, percent, shares
from sinklens.report.card_page import sections, summary, warning

ODD = ("a_b", "\n", "<|mask|>", "|", "`", "$x$", "\\", "{", "50%")


def interval(value: float | None, low: float | None = None, high: float | None = None, n: int = 12) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high, "n": n}


def share_row(name: str, sinks: int, share: float, base: float) -> dict[str, Any]:
    kind = {"token": 7, "token_class": "word", "cells": 1000, "n": 12, "lift": share / base}
    return {"name": name, "sinks": sinks, "share": share, "low": share / 2, "high": share, "base": base, **kind}


@cache
def cost_of(measure: Any) -> dict[str, Any]:
    rows = [*rows_of("none", None, [[1] * 20]), *rows_of("sinks", 1, [[0] * 15 + [1] * 5], dose=0.9)]
    rows += rows_of("random", 1, [[0] * 2 + [1] * 18, [0] + [1] * 19], dose=0.1)
    rows += rows_of("sinks", 1, [[0] + [1] * 19], act="zero", dose=0.9)
    rows += rows_of("sinks", 1, [[1] * 20], act="mean", dose=0.9)
    return summarise_cells(rows, measure)


def card_of(tokens: tuple[str, ...] = ("\n", "a_b", "<|mask|>"), *, measure: Any = ACCURACY) -> dict[str, Any]:
    cost = deepcopy(cost_of(measure))
    kinds = dict.fromkeys(("moving right", "moving left", "jumping", "frontier"), 0.0)
    kinds |= {"static": 0.7, "flicker": 0.2, "split": 0.0, "moving": 0.1, "jumping": 0.1, "right_minus_left": 0.0}
    life = {"median": 4.0, "median_low": 3.0, "median_high": None, "n": 12, "lives": 30, "censored": 9, "left_out": 2}
    verdicts = {"no-op": 2, "broadcast": 1, "mixed": 0, "no sink": 5, "undecided": 0}
    head = {"head": 0, "verdict": "no-op", "output_ratio": 0.2, "output_rank": 1.5, "sink_steps": 1.0}
    return {
        "card": 1,
        "fingerprint": "0123456789ab",
        "complete": True,
        "missing": {},
        "model": {
            "name": "tiny_m", "source": "tiny_m", "family": "llada", "causal": False, "layers": 2, "heads": 4,
            "kv_heads": 4, "dtype": "bfloat16", "weights_sha256": "ab" * 32,
        },
        "made": {"sinklens": "9.9", "date": "2031-02-03"},
        "settings": {
            "prompts": 12, "prompts_from": "word_problems, split test", "measured_on": "word_problems, split test",
            "answered_by": "greedy", "draws": 2, "seed": 0, "command": "sinklens card tiny_m",
            "sampler": {"name": "LLaDASampler", "steps": 8, "cfg": None},
        },
        "where": {
            "metric": "epsilon", "epsilon": 3.0, "prompts": 12, "sinks": 1234, "cells": 99_000,
            "sink_share": interval(0.0125, 0.01, 0.015), "absorbed": interval(0.2, 0.1, 0.3),
            "heads_with_sink": interval(0.5, 0.4, 0.6),
            "first": {"share": interval(0.31, 0.2, 0.4), "base": 0.01, "token": "<|bos|>", "is_bos": True},
            "layers": [
                {"layer": layer, "mass": interval(mass, mass / 2, mass * 1.1), "sinks": interval(1.0)}
                for layer, mass in enumerate((0.1, 0.35))
            ],
            "classes": [share_row("mask", 700, 0.6, 0.5), share_row("newline", 400, 0.4, 0.1)],
            "tokens": [share_row(token, 100 - place, 0.2, 0.1) for place, token in enumerate(tokens)],
            "explained": {"position": interval(0.4, 0.3, 0.5), "token": None, "mask": interval(None)},
        },
        "how": {
            "tracks": 77,
            "shares": {name: {**interval(value, value, value), "null": 0.05} for name, value in kinds.items()},
            "lifetimes": {"tracks": life},
        },
        "what": {
            "attention_share": interval(0.3, 0.2, 0.4), "contribution_share": interval(0.1, 0.05, 0.2),
            "output_ratio": interval(0.4, 0.3, 0.5), "rank_with_sink": interval(1.5, 1, 2),
            "rank_without": interval(3.0, 2.5, 3.5), "verdicts": verdicts, "heads": 8,
            "layers": [{"layer": 0, "heads": [head]}],
            "value_effect": read_value_effect(cost["cells"], verdicts),
        },
        "cost": cost,
    }  # fmt: skip


def without_intervals(document: Any) -> Any:
    """The card of a single prompt and problem."""
    if isinstance(document, dict):
        return {
            name: None if name in ("low", "high", "median_low", "median_high") else without_intervals(value)
            for name, value in document.items()
        }
    return [without_intervals(one) for one in document] if isinstance(document, list) else document


def plain(rows: Any) -> list[list[str]]:
    return [["".join(one if isinstance(one, str) else one.text for one in cell) for cell in row] for row in rows]


def test_the_page_says_what_was_measured() -> None:
    where, how, what, cost = (plain(one.rows) for one in sections(card_of()))
    assert where[0] == ["tokens that are sinks (epsilon 3)", "1.2 % (1.0 to 1.5)", ""]
    assert where[3][:2] == ["mass of a head's main sink, layer 1, the strongest", "35.0 % (17.5 to 38.5)"]
    assert where[4] == ["sinks on position 0: <|bos|>, bos", "31.0 % (20.0 to 40.0)", "1.0 %"]
    assert [row[0] for row in where[5:]] == [
        "on class mask", "on class newline", "on token \\n", "on token a_b", "on token <|mask|>",
        "sink status explained by position alone",
    ]  # fmt: skip
    assert how[0] == ["static", "70.0 % (70.0 to 70.0)", "5.0 %"]
    assert [row[0] for row in how] == [
        "static",
        "flicker",
        "split",
        "moving",
        "of these jumping",
        "median life, in steps",
    ]
    assert how[-1][1] == "4 (3 to beyond the trace)"
    assert what[3] == ["effective rank of what a head writes", "1.50 (1.00 to 2.00)", "3.00 (2.50 to 3.50)"]
    assert what[4] == ["heads, of 8", "2 no-op, 1 broadcast, 5 no sink", ""]
    assert what[5][:2] == ["top 1 sink, minus infinity: cost", "75.0 (55.0 to 90.0)"]
    assert what[6][2].startswith("saves +70.0 (") and what[6][2].endswith(") over minus infinity")
    assert [row[0] for row in cost] == ["nothing", "top 1 sink", "1 random key, 2 draws"]
    assert cost[0][1:] == ["100.0 % (83.9 to 100.0)", "", "", ""]
    assert cost[1][1:] == ["25.0 % (11.2 to 46.9)", "75.0 (55.0 to 90.0)", cost[1][3], "0.90"]
    assert cost[2][2].startswith("7.5 (")


def test_the_summary_and_the_reading() -> None:
    card = card_of()
    assert summary(card).startswith(
        "1.2 % of tokens are sinks, 60.0 % of them on tokens of class mask; 10.0 % of their"
    )
    assert "costs 75.0 (55.0 to 90.0) points, as many random keys 7.5 (" in summary(card)
    assert summary(card).endswith("Reading: no-op.")
    assert "attention is parked there" in sections(card)[2].sentence
    card["where"]["first"]["share"]["value"] = 0.7
    assert "sinks, 70.0 % of them on position 0;" in summary(card)


@pytest.mark.parametrize(
    ("prompts", "problems", "said"),
    [
        (10, 10, ""),
        (9, 64, "Only 9 prompts: below 10"),
        (16, 4, "Only 4 problems:"),
        (1, 1, "Only 1 prompt and 1 problem:"),
    ],
)
def test_a_card_of_few_units_begins_with_a_warning(tmp_path: Path, prompts: int, problems: int, said: str) -> None:
    card = card_of()
    card["where"]["prompts"], card["cost"]["n"] = prompts, problems
    picture = draw_card(card, tmp_path)[0]
    page = write_html(tmp_path / "card.html", card, picture=picture).read_text("utf-8")
    text = write_markdown(tmp_path / "card.md", card, picture="card.png").read_text("utf-8")
    table = write_table(tmp_path / "card.tex", card).read_text("utf-8")
    assert warning(card).startswith(said) and bool(warning(card)) == bool(said)
    assert (
        ('<p class="warning">' in page) == ("\n> **Only " in text) == ("Only " in table.splitlines()[0]) == bool(said)
    )
    if said:
        assert page.index(said) < page.index("of tokens are sinks") and text.index(said) < text.index("of tokens are")


def test_what_a_reader_must_know_is_said() -> None:
    card = card_of()
    assert "too narrow" not in sections(card)[0].sentence
    card["where"]["prompts"], card["cost"]["n"] = 4, 1
    card["cost"]["cells"][0]["value"]["value"] = 0.1
    parts = sections(card)
    assert "With so few the intervals are too narrow." in parts[0].sentence
    assert "One unit: no intervals." in parts[3].sentence
    assert "so few that a cost says little" in parts[3].sentence
    assert summary(card).endswith("Untouched it solves 10.0 % of the problems, too few for a cost to show: see --text.")
    assert "hardly go" not in parts[1].sentence
    card["model"]["causal"] = True
    assert "hardly go" in sections(card)[1].sentence


def test_nats_are_not_points() -> None:
    card = card_of(measure=NLL)
    cost = sections(card)[3]
    assert (cost.columns[1], cost.sentence[:9]) == ("nll (95 %)", "20 chunks")
    assert plain(cost.rows)[1][1].startswith("0.250 (")
    assert "nats a token" in summary(card)


def test_a_card_without_intervals_has_none() -> None:
    for part in sections(without_intervals(card_of())):
        cells = [cell for row in plain(part.rows) for cell in row[1:]]
        assert not any(" to " in cell for cell in cells if "beyond" not in cell), part.title


@pytest.mark.parametrize("token", ODD)
def test_latex_is_escaped_and_balanced(tmp_path: Path, token: str) -> None:
    text = write_table(tmp_path / "card.tex", card_of((token,))).read_text("utf-8")
    body = re.sub(r"^%.*$", "", text, flags=re.M)
    rest = re.sub(r"\\[{}$&#%_]", "", body)
    assert rest.count("{") == rest.count("}")
    assert not set(re.sub(r"\\[a-z]+|[{}&]|\\\\", "", rest)) & set("\\$#%_^~<>|`'")
    rows = [line for line in rest.splitlines() if line.endswith("\\\\")]
    assert {line.count("&") for line in rows} == {4}
    assert (rest.count("\\midrule"), rest.count("\\begin{tabular}{lllll}"), rest.count("\\end{tabular}")) == (4, 1, 1)


def test_latex_known(tmp_path: Path) -> None:
    text = write_table(tmp_path / "card.tex", card_of()).read_text("utf-8")
    assert r"\textbf{tiny\_m}" in text
    assert r"on token \texttt{\textbackslash{}n} & 20.0 \% (10.0 to 20.0) & 10.0 \% &  &  \\" in text
    assert r"\texttt{\textless{}\textbar{}mask\textbar{}\textgreater{}}" in text
    assert r"\textit{How they move} & share of tracks (95 \%) & under the null &  &  \\" in text


@settings(max_examples=40, deadline=None)
@given(st.text(st.sampled_from("|`<>&*_\\$~[]\n a") | st.characters(), max_size=8))
@example("<|mask|>")
def test_any_token_leaves_the_tables_whole(tmp_path_factory: pytest.TempPathFactory, token: str) -> None:
    folder = tmp_path_factory.mktemp("card")
    card = card_of((token,))
    lines = write_markdown(folder / "card.md", card, picture="card.png").read_text("utf-8").split("\n")
    usual = write_markdown(folder / "usual.md", card_of(("a",)), picture="card.png").read_text("utf-8").split("\n")
    assert [line.count("|") for line in lines] == [line.count("|") for line in usual]
    (row,) = [line for line in lines if line.startswith("| on token ")]
    assert re.fullmatch(r"\| on token <code>[^<>|`]*</code> \| 20\.0 % \(10\.0 to 20\.0\) \| 10\.0 % \|", row)


class Tags(HTMLParser):
    """Whether every tag is closed, and the text of the code elements."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.code: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "code":
            self.code.append(data)


def test_html_is_one_whole_file(tmp_path: Path) -> None:
    card = card_of(("<|mask|>", "</td>", "&"))
    png, _ = draw_card(card, tmp_path)
    page = Tags()
    page.feed(write_html(tmp_path / "card.html", card, picture=png).read_text("utf-8"))
    assert page.open == []
    assert page.code == ["<|bos|>", "<|mask|>", "</td>", "&"]
    (source,) = page.sources
    assert source.startswith("data:image/png;base64,")


@pytest.mark.parametrize("measure", [ACCURACY, NLL], ids=["accuracy", "nll"])
def test_the_figure_is_drawn(tmp_path: Path, measure: Any) -> None:
    whole = card_of(measure=measure)
    for number, card in enumerate((whole, without_intervals(whole), _bare(whole))):
        png, svg = draw_card(card, tmp_path / str(number))
        assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert svg.stat().st_size > 10_000
    assert draw_card(whole, tmp_path / "again")[0].read_bytes() == (tmp_path / "0" / "card.png").read_bytes()


def test_no_mark_lies_outside_its_panel() -> None:
    from sinklens.report.card_figure import _draw_classes
    from sinklens.report.style import new_figure, styled

    where = card_of()["where"]
    where["classes"][1]["base"] = 0.95  # far beyond every bar
    with styled():
        axis = new_figure(width=3.0, height=2.0).subplots()
        _draw_classes(axis, where)
        low, high = axis.get_xlim()
    (marks,) = (line for line in axis.lines if line.get_marker() == "D")
    assert low == 0 and max(marks.get_xdata()) == 95.0 <= high


def _bare(card: dict[str, Any]) -> dict[str, Any]:
    """No sink, hence no shares, no tracks, and only the unmasked cell."""
    bare = deepcopy(card)
    for row in bare["where"]["classes"]:
        row |= {"share": None, "low": None, "high": None}
    for share in bare["how"]["shares"].values():
        share |= {"value": None, "low": None, "high": None, "null": None}
    bare["cost"] |= {"cells": bare["cost"]["cells"][:1], "tops": []}
    return bare


def test_a_card_without_sinks_can_be_written(tmp_path: Path) -> None:
    bare = _bare(card_of(()))
    bare["what"]["value_effect"] = {"top": None, "acts": {}, "reading": None}
    bare["where"]["first"] |= {"token": None, "is_bos": None, "base": None}
    assert summary(bare) == "1.2 % of tokens are sinks."
    assert "Not measured." in write_markdown(tmp_path / "card.md", bare, picture="card.png").read_text("utf-8")


def test_it_can_be_cited() -> None:
    card = card_of()
    assert "weights sha256 abababababababab. sinklens 9.9, 2031-02-03, card 0123456789ab" in identity(card)
    entry = citation(card)
    assert entry.count("{") == entry.count("}")
    assert "Sink card of tiny\\_m" in entry and "ab" * 32 in entry and "year = {2031}" in entry
    card["model"]["weights_sha256"] = None
    assert "weights not hashed" in identity(card)
    assert "sha256" not in citation(card)


def test_numbers() -> None:
    assert [percent(value) for value in (0.1234, 0.00123, 0.0, None)] == ["12.3 %", "0.12 %", "0.0 %", ""]
    assert shares(interval(0.5)) == "50.0 %"
    assert numbers(interval(None)) == ""
    assert numbers(interval(1.0, 0.5, 2.0), digits=1) == "1.0 (0.5 to 2.0)"
