"""Whole maps on their way to the disk: of arrays that were lent, nothing is kept."""

from pathlib import Path

import numpy as np

from sinklens.traces.read import open_trace
from sinklens.traces.write import TraceWriter
from traces.synthetic import end_of, manifest, steps_of


def test_maps_that_the_caller_goes_on_with(tmp_path: Path) -> None:
    came = []
    with TraceWriter.create(tmp_path / "a", manifest(), samples=1, exact=True) as writer:
        with writer.sample(0) as sample:
            for rows in steps_of(0, with_maps=True):
                assert rows.attention is not None
                values = rows.attention.maps[1, 2]
                came.append(values.copy())
                sample.add(rows)
                np.asarray(values)[...] = -1
            sample.end(end_of(0))
        writer.finish()
    for (*_, read), values in zip(open_trace(tmp_path / "a").maps(0), came, strict=True):
        np.testing.assert_array_equal(read, values)
