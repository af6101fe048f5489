"""A card written down: Markdown, one self-contained HTML file, and a LaTeX table."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from sinklens.files import written_whole
from sinklens.report.card_numbers import plural
from sinklens.report.card_page import Cell, Code, Section, sections, summary, warning
from sinklens.report.numbers import latex, write_latex

Entry = Mapping[str, Any]
PICTURE = "Main sink by layer, tokens under sinks, kinds of tracks, and what removing sinks costs"
STYLE = """\
body { font: 13px/1.35 system-ui, sans-serif; max-width: 75em; margin: 1.2em auto; padding: 0 1em; color: #111 }
body { overflow-wrap: anywhere }
h1 { font-size: 1.5em; margin: 0 0 .2em } h2 { font-size: 1.1em; margin: 1em 0 .1em } p { margin: .25em 0 }
table { border-collapse: collapse; margin: .3em 0 } th { text-align: left; border-bottom: 1px solid #444 }
td, th { padding: .1em 1.2em .1em 0; vertical-align: top } tr + tr td { border-top: 1px solid #eee }
img { width: 100% } code, pre { background: #f4f4f4; padding: 0 .2em; white-space: pre-wrap } pre { padding: .5em }
.parts { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); column-gap: 2em }
.parts td:nth-child(2) { white-space: nowrap } .small { color: #555; font-size: .9em }
.warning { background: #fff1d6; border-left: .3em solid #b84a00; padding: .4em .7em; font-weight: bold }
@media print { body { margin: 0; font-size: 9px } } @media (max-width: 60em) { .parts { display: block } }
"""


def write_markdown(path: Path, card: Entry, *, picture: str) -> Path:
    lines = [f"# Sink card: {_markdown((card['model']['name'],))}", "", _markdown((identity(card),)), ""]
    if said := warning(card):
        lines += [f"> **{_markdown((said,))}**", ""]
    lines += [f"**{_markdown((summary(card),))}**", "", f"![{PICTURE}]({picture})"]
    for part in sections(card):
        lines += ["", f"## {part.title}", "", _markdown((part.sentence,)), ""]
        lines += [_line(part.columns), _line(["---"] * len(part.columns))]
        lines += [_line([_markdown(cell) for cell in row]) for row in part.rows]
    lines += ["", "## Settings and citation", "", _markdown((settings(card),)), "", "```bibtex", citation(card), "```"]
    return _write(path, "\n".join([*lines, ""]))


def write_html(path: Path, card: Entry, *, picture: Path) -> Path:
    """Everything in one file, the picture included."""
    data = b64encode(picture.read_bytes()).decode()
    parts = [_html_section(part) for part in sections(card)]
    said = warning(card)
    body = [
        f"<h1>Sink card: {escape(card['model']['name'])}</h1>",
        f'<p class="small">{escape(identity(card))}</p>',
        *([f'<p class="warning">{escape(said)}</p>'] if said else []),
        f"<p><b>{escape(summary(card))}</b></p>",
        f'<img alt="{escape(PICTURE)}" src="data:image/png;base64,{data}">',
        f'<div class="parts">{"".join(parts[:2])}</div>',
        *parts[2:],
        f'<h2>Settings and citation</h2><p class="small">{escape(settings(card))}</p>',
        f"<pre>{escape(citation(card))}</pre>",
    ]
    title = f"<title>Sink card: {escape(card['model']['name'])}</title>"
    head = f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{title}\n<style>\n{STYLE}</style></head>'
    return _write(path, "\n".join([head, "<body>", *body, "</body></html>", ""]))


def write_table(path: Path, card: Entry) -> Path:
    """A booktabs table of all four parts; each begins with a line that names its columns."""
    parts = sections(card)
    width = max(len(part.columns) for part in parts)
    groups = [
        [_title(part, width), *(_padded([_latex(cell) for cell in row], width) for row in part.rows)] for part in parts
    ]
    columns = [("l", rf"\textbf{{{latex(card['model']['name'])}}}"), *[("l", "")] * (width - 1)]
    said = "".join(one if one.isascii() and one.isprintable() else " " for one in identity(card))
    return write_latex(path, columns=columns, groups=groups, comment=f"sink card: {said} {warning(card)}".rstrip())


def identity(card: Entry) -> str:
    """Which model, to the bit, and what measured it when."""
    model, made = card["model"], card["made"]
    kind = "autoregressive" if model["causal"] else "masked diffusion"
    weights = f"weights sha256 {model['weights_sha256'][:16]}" if model["weights_sha256"] else "weights not hashed"
    return (
        f"{model['source'] or model['name']}: {model['family']}, {kind}, {model['layers']} layers x {model['heads']} "
        f"heads, {model['dtype']}, {weights}. sinklens {made['sinklens']}, {made['date']}, card {card['fingerprint']}."
    )


def settings(card: Entry) -> str:
    """Everything that decides a number, in one paragraph."""
    said = card["settings"]
    sampler = dict(said["sampler"])
    name = sampler.pop("name")
    options = ", ".join(f"{key}={value}" for key, value in sampler.items() if value not in (None, False))
    lacking = "".join(f" No {part}: {why}." for part, why in card["missing"].items())
    unfinished = "" if card["complete"] else " NOT COMPLETE: it was interrupted."
    traced = f"{plural(said['prompts'], 'prompt')} of {said['prompts_from']}"
    return (
        f"Trace: {traced}, {name}({options}), seed {said['seed']}. "
        f"Removal: {said['measured_on']}, {said['answered_by']}; random keys in {plural(said['draws'], 'draw')}. "
        f"Intervals are 95 %, over prompts, and over problems or chunks.{lacking}{unfinished} "
        f"Made by: {said['command']}"
    )


def citation(card: Entry) -> str:
    model, made = card["model"], card["made"]
    weights = f", weights sha256 {model['weights_sha256']}" if model["weights_sha256"] else ""
    return "\n".join(
        [
            f"@misc{{sinkcard-{card['fingerprint']},",
            f"  title = {{Sink card of {latex(model['name'])}}},",
            "  author = {{sinklens}},",
            f"  year = {{{made['date'][:4]}}},",
            f"  howpublished = {{sinklens {made['sinklens']}, sinklens card}},",
            f"  note = {{card {card['fingerprint']}, {latex(model['source'] or model['name'])}{weights}}}",
            "}",
        ]
    )


def _title(part: Section, width: int) -> list[str]:
    return _padded([rf"\textit{{{latex(part.title)}}}", *(latex(name) for name in part.columns[1:])], width)


def _padded(cells: Sequence[str], width: int) -> list[str]:
    return [*cells, *[""] * (width - len(cells))]


def _latex(cell: Cell) -> str:
    return "".join(rf"\texttt{{{latex(one.text)}}}" if isinstance(one, Code) else latex(one) for one in cell)


def _markdown(cell: Cell) -> str:
    """Text as it stands: what Markdown or HTML would read into it is escaped."""
    return "".join(f"<code>{_inert(one.text)}</code>" if isinstance(one, Code) else _inert(one) for one in cell)


def _inert(text: str) -> str:
    named = escape(text, quote=False)
    return "".join(f"&#{ord(one)};" if one in "|`*_[]\\~$" else one for one in named)


def _html_section(part: Section) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in part.columns)
    rows = "".join("<tr>" + "".join(f"<td>{_html(cell)}</td>" for cell in row) + "</tr>" for row in part.rows)
    table = f"<table><tr>{head}</tr>{rows}</table>"
    return f'<div><h2>{escape(part.title)}</h2><p class="small">{escape(part.sentence)}</p>{table}</div>'


def _html(cell: Cell) -> str:
    return "".join(f"<code>{escape(one.text)}</code>" if isinstance(one, Code) else escape(one) for one in cell)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _write(path: Path, text: str) -> Path:
    with written_whole(path) as temporary:
        temporary.write_text(text, "utf-8", newline="\n")
    return path
