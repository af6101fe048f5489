"""A masking result for people: figures and tables, from the document of `sinklens.evaluation.report.summarise` alone.

    figure_masking   accuracy over the number of keys hidden, sinks against controls
    figure_square    {causal, diffusion} x {cached, recomputed}
    figure_epsilon   accuracy and keys hidden over the threshold
    figure_flow      where the attention goes
    table.md, table.tex

Needs neither torch nor the rows. Only what the result has is drawn.
"""

from pathlib import Path

from sinklens.files import written_whole
from sinklens.report.masking_figures import draw_accuracy, draw_square
from sinklens.report.masking_flow import draw_flow
from sinklens.report.masking_grid import Result
from sinklens.report.masking_tables import table_latex, table_markdown, table_text
from sinklens.report.masking_thresholds import draw_thresholds
from sinklens.report.style import save, styled

__all__ = ["FIGURES", "draw", "table_latex", "table_markdown", "table_text"]

FIGURES = {
    "figure_masking": draw_accuracy,
    "figure_square": draw_square,
    "figure_epsilon": draw_thresholds,
    "figure_flow": draw_flow,
}


def draw(result: Result, folder: Path) -> list[Path]:
    """Write the figures (PNG and SVG) and the tables into a folder; the paths that were written."""
    written = []
    with styled():
        for name, make in FIGURES.items():
            figure = make(result)
            if figure is not None:
                written += save(figure, folder, name=name)
    for name, text in (("table.md", table_markdown(result)), ("table.tex", table_latex(result))):
        with written_whole(folder / name) as temporary:
            temporary.write_text(text, "utf-8")
        written.append(folder / name)
    return written
