"""The log of a run, and of a run that went on from another."""

from pathlib import Path

from sinklens.training.log import FIRST_STAGE, LOG, read_log, read_stages, write_log


def test_a_second_stage_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    first = [{"step": 10, "tokens": 100, "text_loss": 3.0}, {"step": 20, "tokens": 200, "text_loss": 2.5}]
    write_log(tmp_path, first)
    assert read_stages(tmp_path) == first
    (tmp_path / LOG).rename(tmp_path / FIRST_STAGE)
    assert read_log(tmp_path) == []
    write_log(tmp_path, [{"step": 5, "tokens": 25, "text_loss": 2.0}])
    assert read_stages(tmp_path) == [*first, {"step": 25, "tokens": 225, "text_loss": 2.0}]
    assert read_log(tmp_path) == [{"step": 5, "tokens": 25, "text_loss": 2.0}]
