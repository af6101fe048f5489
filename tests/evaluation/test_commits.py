"""The commit of a model that came from the hub is in every result."""

import json
from pathlib import Path
from typing import Any

import pytest

import sinklens as sl
from downloaded import COMMIT, SOURCE, as_download
from sinklens.evaluation.answering import Answering
from sinklens.evaluation.atlas import causal_atlas, run_atlas
from sinklens.evaluation.atlas_result import summarise as summarise_atlas
from sinklens.evaluation.compress_cells import Cell
from sinklens.evaluation.compress_experiment import CompressExperiment
from sinklens.evaluation.compress_experiment import run as run_compress
from sinklens.evaluation.compress_problems import Asking
from sinklens.evaluation.compress_result import summarise as summarise_compress
from sinklens.evaluation.conditions import Condition
from sinklens.evaluation.experiment import Experiment, run_experiment
from sinklens.models.catalog import ZOO, commit_of
from sinklens.sweeps.folder import SweepFolder
from sinklens.sweeps.grid import jobs_of
from sinklens.sweeps.job import Resources, load_once
from sinklens.sweeps.run import run_here, run_sweep

ANSWERING = {"task": "word_problems", "length": 2}


@pytest.fixture(autouse=True)
def downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    return as_download(monkeypatch, ZOO / "tiny-llama", tmp_path)


def test_a_source_names_its_commit() -> None:
    assert commit_of(SOURCE) == COMMIT
    for other in (None, "", "tiny-llama", "a/folder", "a/folder@main", f"/a/folder@{COMMIT}", COMMIT, f"@{COMMIT}"):
        assert commit_of(other) is None


@pytest.mark.parametrize(("name", "source"), [("owner/name", SOURCE), ("tiny-llama", "tiny-llama"), ("here", "here")])
def test_rows_of_a_sweep(tmp_path: Path, name: str, source: str) -> None:
    """A folder stands as the grid names it: rows are the same wherever it lies."""
    import pyarrow.parquet as pq

    (tmp_path / "here").symlink_to(ZOO / "tiny-llama")
    grid = {"models": [name], "tasks": [ANSWERING], "problems": 1}
    (job,) = jobs_of(grid)
    folder, resources = SweepFolder(path=tmp_path / "sweep"), Resources(device="cpu", base=str(tmp_path))
    folder.claim(grid, [job])
    run_sweep(folder, [job], running=run_here, resources=resources)
    load_once.cache_clear()
    assert folder.failure_of(job) is None
    assert pq.read_table(folder.rows_of(job))["source"].to_pylist() == [source]


@pytest.mark.filterwarnings("default::DeprecationWarning")  # of what lm-eval imports
def test_results_of_the_harness() -> None:
    pytest.importorskip("lm_eval", reason="needs the extra: pip install 'sinklens[eval]'")
    from sinklens.evaluation.lm_eval_model import SinklensLM

    told = SinklensLM(pretrained="owner/name").get_model_info()
    assert (told["model_sha"], told["model_revision"], told["model_source"]) == (COMMIT, COMMIT, SOURCE)
    assert SinklensLM(pretrained="owner/name", revision="v1").get_model_info()["model_revision"] == "v1"
    told = SinklensLM(pretrained="tiny-llama").get_model_info()
    assert (told["model_sha"], told["model_revision"], told["model_source"]) == ("", "", "tiny-llama")


def test_experiments(tmp_path: Path) -> None:
    model = sl.load("owner/name", revision="v1")
    answerings = [Answering(**ANSWERING)]  # type: ignore[arg-type]
    masking = Experiment(models={"name": model}, answerings=answerings, cells={"name": [Condition()]}, problems=1)
    run_experiment(masking, tmp_path / "mask")
    written = json.loads((tmp_path / "mask" / "experiment.json").read_text())
    assert written["models"]["name"]["source"] == SOURCE
    asked = {"asking": Asking(lengths=(160,)), "text": "hash", "problems": 1}
    cut = CompressExperiment(model=model, name="name", cells={"passkey": [Cell()]}, **asked)  # type: ignore[arg-type]
    run_compress(cut, tmp_path / "compress")
    assert summarise_compress(tmp_path / "compress")["source"] == SOURCE
    run_atlas(causal_atlas(model, [list(range(100, 140))] * 2, nulls=2), tmp_path / "atlas")
    assert summarise_atlas(tmp_path / "atlas")["told"]["model_source"] == SOURCE
