"""A trace on disk and the same arrays in memory give the same numbers."""

from pathlib import Path

import numpy as np
import pytest

from report.conftest import read_csv
from report.three_models import MappedTrace
from sinklens.report.figures import draw_figures
from sinklens.report.scene import Drawn
from sinklens.traces.read import open_trace
from sinklens.traces.rows import AttentionRows, GroupRows, SampleEnd, StepRows
from sinklens.traces.write import TraceWriter


def attention_rows(trace: MappedTrace, sample: int, step: int) -> AttentionRows:
    layers = [trace.contents[sample, number] for number in trace.layers]
    keys = int((trace.texts[sample].ids[step] >= 0).sum())

    def stacked(name: str | None) -> dict[str, np.ndarray]:
        readings = [layer if name is None else layer.groups[name] for layer in layers]
        fields = ("received", "expected", "viewers")
        return {field: np.stack([getattr(one, field)[step, :, :keys] for one in readings]) for field in fields}

    stored = {(layer, head): one for at, layer, head, one in trace.stored[sample] if at == step}
    groups = ("last_row",) if trace.causal else ("masked", "unmasked")
    readings = {name: GroupRows(**stacked(None if name == "last_row" else name)) for name in groups}
    return AttentionRows(
        **stacked(None), layers=trace.layers, heads=trace.heads, queries=keys, groups=readings,
        maps={place: one.astype(np.float32) for place, one in stored.items()},
    )  # fmt: skip


def write(trace: MappedTrace, folder: Path) -> Path:
    model = {
        "name": trace.name, "family": "none", "causal": trace.causal, "layers": len(trace.layers),
        "heads": len(trace.heads), "kv_heads": len(trace.heads),
    }  # fmt: skip
    manifest = {
        "fingerprint": {"seed": 0}, "model": model, "detail": "full", "every": 1, "layers": trace.layers,
        "heads": trace.heads,
    }  # fmt: skip
    with TraceWriter.create(folder, manifest, samples=len(trace.samples), exact=True) as writer:
        for number in writer.missing:
            canvases = trace.texts[number]
            with writer.sample(number) as sample:
                for step, ids in enumerate(canvases.ids):
                    there = ids >= 0
                    committed = np.flatnonzero(canvases.committed[step])
                    first, stop = canvases.blocks[step].tolist()
                    rows = StepRows(
                        step=step, ids=ids[there], masked=canvases.masked[step][there], committed=committed,
                        committed_ids=canvases.ids[-1][committed], confidence=canvases.confidence[step][there],
                        block=None if first < 0 else (first, stop), attention=attention_rows(trace, number, step),
                    )  # fmt: skip
                    sample.add(rows)
                tokens = {token: (text, canvases.classes.get(token)) for token, text in canvases.tokens.items()}
                sample.end(
                    SampleEnd(
                        prompt=None,
                        text=None,
                        prompt_length=canvases.prompt_length,
                        ids=canvases.ids[-1],
                        tokens=tokens,
                    )
                )
        writer.finish()
    return folder


@pytest.mark.parametrize("which", [0, 2], ids=["diffusion", "autoregressive"])
def test_disk_and_memory_agree(which: int, traces: list[MappedTrace], tmp_path: Path) -> None:
    trace = traces[which]
    opened = open_trace(write(trace, tmp_path / "trace"))
    from_disk: list[Drawn] = draw_figures([opened], tmp_path / "disk")
    from_memory = draw_figures([trace], tmp_path / "memory")
    assert [(one.id, one.note, len(one.files)) for one in from_disk] == [
        (one.id, one.note, len(one.files)) for one in from_memory
    ]
    for path in sorted((tmp_path / "memory").glob("*.csv")):
        assert read_csv(tmp_path / "disk" / path.name) == read_csv(path), path.name
