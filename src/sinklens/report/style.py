"""How every figure looks, and how it is written: the same bytes for the same numbers.

Made for print: one column is 3.3 inches, no text is below 7 points, lines differ in dash and marker as well as in
colour (Okabe and Ito), heat maps use cividis or viridis. matplotlib is loaded when the first figure is drawn, its
object interface alone is used, and its settings are put back afterwards.
"""

import threading
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from sinklens.files import written_whole
from sinklens.sinks.tokens import display

COLUMN = 3.3  # inches: one column of a two-column page
PAGE = 6.9  # inches: the whole width
ACROSS = 3  # panels in a row at most
DPI = 200
LONGEST_TOKEN = 11  # characters
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1)), (0, (5, 1, 1, 1)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
BLANK = "#D9D9D9"  # no such token at that step
SHARE = "attention received (fair shares; 1 = uniform)"
_SETTINGS = {
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 7,
    "figure.dpi": DPI,
    "font.family": ["DejaVu Sans"],
    "font.size": 8,
    "image.interpolation": "nearest",
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "svg.fonttype": "path",  # the same picture where the font is missing
    "svg.hashsalt": "sinklens",  # else the names inside an SVG are drawn at random
    "text.parse_math": False,  # a token may be a dollar sign
    "xtick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.labelsize": 7,
    "ytick.major.width": 0.6,
}
_ONE_AT_A_TIME = threading.Lock()  # matplotlib's settings belong to the whole process


@contextmanager
def styled() -> Iterator[None]:
    """Our settings on top of matplotlib's own defaults, whatever the user has set; restored on leaving."""
    import matplotlib

    with _ONE_AT_A_TIME, matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def new_figure(*, width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def panels(count: int, *, height: float) -> tuple[Any, list[Any]]:
    """A figure with `count` panels, a column wide for one and a page wide for more, each row `height` inches."""
    across = min(count, ACROSS)
    down = -(-count // across)
    figure = new_figure(width=COLUMN if count == 1 else PAGE, height=height * down)
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def save(figure: Any, to: Path, *, name: str) -> list[Path]:
    """PNG and SVG, without dates or versions."""
    written = []
    for suffix, metadata in ((".png", {"Software": None}), (".svg", {"Date": None, "Creator": "sinklens"})):
        path = to / (name + suffix)
        with written_whole(path) as temporary:
            figure.savefig(temporary, format=suffix[1:], dpi=DPI, metadata=metadata)
        written.append(path)
        figure.set_layout_engine("none")  # laid out once: the two files show the same
    return written


def save_all(makers: "Mapping[str, Callable[[Any], Any]]", result: Any, folder: Path, *, table: str) -> list[Path]:
    """Every figure that a result has numbers for (a maker gives None without), and table.md; what was written."""
    written = []
    with styled():
        for name, make in makers.items():
            figure = make(result)
            if figure is not None:
                written += save(figure, folder, name=name)
    with written_whole(folder / "table.md") as temporary:
        temporary.write_text(table, "utf-8")
    return [*written, folder / "table.md"]


def line_style(number: int) -> dict[str, Any]:
    """Colour and dash of the n-th line; dashes and colours have different periods, so no pair comes back soon."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}


def colour_bar(figure: Any, image: Any, *, axes: Sequence[Any], label: str) -> Any:
    """One colour bar to the right of all panels, equally wide however many rows they have."""
    rows = len({axis.get_subplotspec().rowspan.start for axis in axes})
    bar = figure.colorbar(image, ax=axes, label=label, shrink=0.9, aspect=28 * rows)
    bar.outline.set_linewidth(0.4)
    return bar


def share_norm(*, top: float) -> Any:
    """Colours of attention received: the square root opens the crowd near 1 and still lets sinks stand out."""
    from matplotlib.colors import PowerNorm

    return PowerNorm(0.5, vmin=0.0, vmax=max(top, 1.0))


def colour_map(name: str) -> Any:
    """A matplotlib colour map with a grey of its own for what is not there."""
    from matplotlib import colormaps

    return colormaps[name].with_extremes(bad=BLANK)


def plain_count(value: float, _position: int = 0) -> str:
    """A tick of a logarithmic count axis: 1, 10, 100, then powers of ten."""
    if value <= 0:
        return ""
    power = round(len(f"{value:.0f}") - 1) if value >= 1 else 0
    if value < 1000:
        return f"{value:g}"
    return "10" + str(power).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


@cache
def _drawable() -> frozenset[int]:
    """The characters DejaVu Sans has a glyph for."""
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


def printable(text: str) -> str:
    """A token as a figure can show it: spaces and line ends visible, what the font lacks as its code, not too long."""
    shown = escape_missing(display(text))
    return shown if len(shown) <= LONGEST_TOKEN else f"{shown[: LONGEST_TOKEN - 1]}…"


def escape_missing(text: str) -> str:
    """Characters that the font lacks, and those that are not shown at all, as their code."""
    known = _drawable()
    return "".join(
        one if ord(one) in known and unicodedata.category(one)[0] != "C" else f"U+{ord(one):04X}" for one in text
    )
