"""The cells of a card, on problems and on text: what is measured is true, and what is there is not done again."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

import sinklens
from sinklens.errors import UsageError
from sinklens.evaluation.answering import Answering
from sinklens.evaluation.card import Chunks, answer_cells, card_conditions, cut_text, name_of, score_cells
from sinklens.evaluation.conditions import mixed_seed
from sinklens.report.card_cells import ACCURACY, NLL, summarise_cells

TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps. " * 12


@pytest.fixture(scope="module")
def llama() -> Any:
    return sinklens.load("tiny-llama")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "fox.txt"
    path.write_text(TEXT, "utf-8")
    return path


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted((folder / "rows").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_the_cells_of_a_card() -> None:
    found = card_conditions(tops=[5, 1], draws=2)
    assert [str(one) for one in found] == [
        "none", "sinks:top=1", "sinks:top=5", "sinks:top=1,act=zero", "sinks:top=1,act=mean",
        "random:top=1", "random:top=1,draw=1", "random:top=5", "random:top=5,draw=1",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="expected numbers of keys"):
        card_conditions(tops=[])
    with pytest.raises(UsageError, match="at least one draw"):
        card_conditions(draws=0)


def test_chunks_are_the_text_behind_a_bos(llama: Any, text: Path) -> None:
    chunks = cut_text(llama, text, count=3, length=24)
    assert [len(ids) for ids in chunks.ids] == [24] * 3
    assert {ids[0] for ids in chunks.ids} == {llama.spec.bos_id}
    assert TEXT.startswith(llama.tokenizer.decode([token for ids in chunks.ids for token in ids[1:]]))
    assert (chunks.first, len(chunks.sha256)) == (12, 64)


def test_texts_that_cannot_be_cut_are_refused(llama: Any, text: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"fox\.txt has \d+ chunks of 64 tokens, 1000 were asked for"):
        cut_text(llama, text, count=1000, length=64)
    with pytest.raises(UsageError, match="expected at least one, of 4 tokens or more"):
        cut_text(llama, text, count=1, length=3)
    with pytest.raises(UsageError, match=r"cannot read the text of .*; give a UTF-8 text file"):
        cut_text(llama, tmp_path / "none.txt", count=1, length=8)


@pytest.fixture(scope="module")
def scored(llama: Any, text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    folder = tmp_path_factory.mktemp("scored")
    chunks = cut_text(llama, text, count=2, length=24)
    conditions = card_conditions(tops=[1], draws=1)
    score_cells(llama, folder, chunks=chunks, conditions=conditions)
    return folder, chunks, conditions


def test_unmasked_is_the_likelihood_of_the_second_half(llama: Any, scored: tuple[Path, Any, Any]) -> None:
    folder, chunks, _ = scored
    ids = torch.tensor(chunks.ids)
    with torch.no_grad():
        chances = llama(ids).float().log_softmax(-1)
    expected = -chances[:, :-1].gather(-1, ids[:, 1:, None])[..., 0][:, chunks.first - 1 :].mean(1)
    found = [row["nll"] for row in rows_in(folder) if row["condition"] == "none"]
    assert found == pytest.approx(expected.tolist(), rel=1e-4)  # float32, with a cache and without


def test_rows_of_text_say_what_was_done(scored: tuple[Path, Any, Any]) -> None:
    folder, _, conditions = scored
    rows = rows_in(folder)
    assert [(row["chunk"], row["condition"]) for row in rows] == [(n, str(one)) for n in range(2) for one in conditions]
    for row in rows:
        assert row["model"] == "tiny-llama"
        assert (row["dose"] is None) == (row["choose"] == "none")
        assert row["dose"] is None or 0 < row["dose"] <= 1
    cells = summarise_cells(rows, NLL)["cells"]
    sinks, random = (next(one for one in cells if one["choose"] == name) for name in ("sinks", "random"))
    assert sinks["dose"] > random["dose"]


def test_what_is_there_is_not_scored_again(
    llama: Any, scored: tuple[Path, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, chunks, conditions = scored
    before = rows_in(folder)
    first, second = sorted((folder / "rows").glob("*.parquet"))
    untouched = first.stat().st_mtime_ns
    second.unlink()
    told: list[tuple[int, int, str]] = []
    score_cells(
        llama, folder, chunks=chunks, conditions=conditions, tell=lambda *at: told.append((at[0], at[1], at[2]))
    )
    assert first.stat().st_mtime_ns == untouched
    assert rows_in(folder) == before  # the chunk that is done alone has the same random keys
    cells = len(conditions)
    assert told == [(cells + index, 2 * cells, one.label) for index, one in enumerate(conditions)]
    monkeypatch.setattr("sinklens.evaluation.perplexity.masked_nll", None)
    score_cells(llama, folder, chunks=chunks, conditions=conditions)  # would fail if anything ran


def test_a_killed_chunk_leaves_no_file(
    llama: Any, scored: tuple[Path, Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, chunks, conditions = scored

    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("sinklens.evaluation.perplexity.masked_nll", killed)
    with pytest.raises(KeyboardInterrupt):
        score_cells(llama, tmp_path, chunks=chunks, conditions=conditions)
    assert rows_in(tmp_path) == []


def test_every_chunk_has_random_keys_of_its_own(llama: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[tuple[int, int]] = []

    def noted(_model: Any, _chunks: Any, _condition: Any, *, first: int, seed: int) -> list[Any]:
        seeds.append((first, seed))
        return [SimpleNamespace(nll=1.0, dose=None, keys_removed=None)]

    monkeypatch.setattr("sinklens.evaluation.perplexity.masked_nll", noted)
    chunks = Chunks(ids=[[1] * 8] * 3, sha256="", first=4)
    score_cells(llama, tmp_path, chunks=chunks, conditions=card_conditions(tops=[1], draws=1)[:2])
    assert len(set(seeds)) == 3 and seeds[::2] == seeds[1::2]  # cells of a chunk share it


def test_a_diffusion_model_is_scored_by_its_bound(text: Path, tmp_path: Path) -> None:
    from sinklens.evaluation.likelihood import Scorer

    model = sinklens.load("tiny-dream")
    chunks = cut_text(model, text, count=1, length=16)
    conditions = card_conditions(tops=[1], draws=1)[:2]
    score_cells(model, tmp_path, chunks=chunks, conditions=conditions, seed=3, elbo_draws=4)
    unmasked, sinks = rows_in(tmp_path)
    ids = chunks.ids[0]
    ((_, bound),) = Scorer(model=model, batch=4, draws=4, seed=mixed_seed(3, 0)).score([(ids[:8], ids[8:])])
    assert unmasked["nll"] == pytest.approx(-bound.value / 8, rel=1e-4)
    assert unmasked["error"] == pytest.approx(bound.error / 8, rel=1e-3)
    assert unmasked["error"] > 0
    assert unmasked["dose"] is None and 0 < sinks["dose"] <= 1.001
    assert sinks["nll"] != unmasked["nll"]


def test_a_bound_has_128_masks_unless_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def noted(*, draws: int, **_: Any) -> Any:
        asked.append(draws)
        return SimpleNamespace(
            score=lambda _pairs: [(0, SimpleNamespace(value=-8.0, error=None))], doses=SimpleNamespace(ratio=None)
        )

    monkeypatch.setattr("sinklens.evaluation.likelihood.Scorer", noted)
    model: Any = SimpleNamespace(spec=SimpleNamespace(causal=False, source="m", family="llada"))
    chunks = Chunks(ids=[[1] * 8], sha256="", first=4)
    score_cells(model, tmp_path, chunks=chunks, conditions=card_conditions(tops=[1], draws=1)[:1])
    assert asked == [128]
    assert [(row["nll"], row["error"]) for row in rows_in(tmp_path)] == [(2.0, None)]


def test_problems_are_answered_in_every_cell(llama: Any, tmp_path: Path) -> None:
    answering = Answering(task="word_problems", length=3, batch=1)
    conditions = card_conditions(tops=[1], draws=1)
    told: list[tuple[int, int]] = []
    for count in (1, 2):  # the second goes on with the first
        answer_cells(
            llama,
            tmp_path,
            answering=answering,
            conditions=conditions,
            count=count,
            tell=lambda *at: told.append(at[:2]),
        )
    assert told == [*((done, 5) for done in range(5)), *((done, 10) for done in range(5, 10))]
    rows = rows_in(tmp_path)
    assert {(row["problem"], row["condition"]) for row in rows} == {
        (n, str(one)) for n in range(2) for one in conditions
    }
    assert (summarise_cells(rows, ACCURACY)["n"], len(rows)) == (2, 10)
    assert {row["model"] for row in rows} == {"tiny-llama"} == {name_of(llama)}
