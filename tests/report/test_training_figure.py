"""The figure of a training run, and that it needs no torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sinklens.errors import UsageError
from sinklens.report.training import draw_training, log_of, main_sink

CAUSAL = [
    {"tokens": 10**7 * n, "text_loss": 5.0 - n, "sinks": {"text": {"largest": 0.2 * n}}, **tasks}
    for n, tasks in ((1, {}), (2, {"word_problems": 0.25}), (3, {"word_problems": 0.75}))
]
DIFFUSION = [{"tokens": 10**8, "text_loss": 4.0, "sinks": {"largest": 0.125}, "word_problems": 0.5}]


def test_it_draws_what_was_measured(tmp_path: Path) -> None:
    written = draw_training({"arm": CAUSAL, "dlm": DIFFUSION}, tmp_path / "training")
    assert [path.name for path in written] == ["training.png", "training.svg"]
    again = draw_training({"arm": CAUSAL, "dlm": DIFFUSION}, tmp_path / "again")
    assert written[1].read_bytes() == again[1].read_bytes()
    changed = draw_training({"arm": CAUSAL[:2], "dlm": DIFFUSION}, tmp_path / "changed")
    assert written[1].read_bytes() != changed[1].read_bytes()


def test_the_main_sink_is_read_from_either_kind_of_model() -> None:
    assert main_sink(CAUSAL[1]) == pytest.approx(0.4)
    assert main_sink(DIFFUSION[0]) == 0.125


def test_a_folder_without_a_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no log.jsonl; expected a folder that `sinklens train` wrote"):
        log_of(str(tmp_path))
    (tmp_path / "log.jsonl").write_text(json.dumps(DIFFUSION[0]) + "\n")
    assert log_of(str(tmp_path)) == DIFFUSION


def test_it_does_not_load_torch() -> None:
    code = "import sys, sinklens.report.training; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
