"""`sinklens card` on an embedded model: every part of the document is there and true, and it goes on where it was."""

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import typer

import sinklens
from sinklens.cli.card import card
from sinklens.cli.interrupts import was_interrupted
from sinklens.errors import UsageError
from sinklens.report.card import read_rows, write_card
from sinklens.report.card_page import sections

TINY: dict[str, Any] = {
    "task": "word_problems", "problems": 4, "traced": 4, "steps": 8, "length": 16, "top": "1", "draws": 1,
    "device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One card of tiny-llada, made once."""
    folder = tmp_path_factory.mktemp("cards") / "llada"
    card("tiny-llada", to=folder, **TINY)
    return folder


@pytest.fixture(scope="module")
def document(made: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((made / "card.json").read_text("utf-8"))
    return found


def sinks_of(folder: Path) -> list[np.ndarray]:
    """Sinks of every sample, [layer, step, head, key], by the public functions alone."""
    trace = sinklens.open_trace(folder / "trace")
    found = []
    for sample in trace.samples:
        layers = [trace.layer(sample, layer) for layer in trace.layers]
        found.append(
            np.stack([sinklens.detect_sinks(one.received, one.expected, 3.0, viewers=one.viewers) for one in layers])
        )
    return found


def test_where_the_sinks_are_is_true(made: Path, document: dict[str, Any]) -> None:
    sinks, where = sinks_of(made), document["where"]
    total = sum(int(one.sum()) for one in sinks)
    assert total > 0
    assert (where["prompts"], where["sinks"], where["cells"]) == (4, total, sum(one.size for one in sinks))
    assert where["sink_share"]["value"] == pytest.approx(total / where["cells"])
    assert where["sink_share"]["low"] < where["sink_share"]["value"] < where["sink_share"]["high"]
    often = [(one.any(-1).mean(1) >= 0.5).mean() for one in sinks]
    assert where["heads_with_sink"]["value"] == pytest.approx(np.mean(often))
    first = sum(int(one[..., 0].sum()) for one in sinks)
    assert where["first"]["share"]["value"] == pytest.approx(first / total)
    assert (where["first"]["token"], where["first"]["is_bos"]) == ("<|startoftext|>", True)
    assert sum(row["sinks"] for row in where["classes"]) == total
    assert [one["layer"] for one in where["layers"]] == list(range(8))


def test_the_mass_of_the_main_sink_is_true(made: Path, document: dict[str, Any]) -> None:
    trace = sinklens.open_trace(made / "trace")
    for number in (0, 7):
        layers = [trace.layer(sample, number) for sample in trace.samples]
        masses = [(one.received / one.viewers).max(-1).mean() for one in layers]
        assert document["where"]["layers"][number]["mass"]["value"] == pytest.approx(np.mean(masses), rel=1e-3)


def test_how_they_move_stands_beside_the_null(made: Path, document: dict[str, Any]) -> None:
    how = document["how"]
    tracks = pq.read_table(made / "tables" / "tracks.parquet")
    assert how["tracks"] == len(tracks) > 0
    kinds = tracks["kind"].to_pylist()
    for name in ("static", "flicker", "split"):
        assert how["shares"][name]["value"] == pytest.approx(kinds.count(name) / len(kinds))
    assert all(share["null"] is not None for share in how["shares"].values())


def test_what_they_do_counts_every_head(document: dict[str, Any]) -> None:
    what = document["what"]
    assert sum(what["verdicts"].values()) == what["heads"] == 32
    assert 0 < what["attention_share"]["value"] < 1
    assert what["output_ratio"]["value"] > 0 and what["rank_with_sink"]["value"] >= 1
    effect = what["value_effect"]
    assert (effect["top"], list(effect["acts"]), effect["reading"]) == (1, ["mask", "zero", "mean"], "undecided")


def test_what_removing_costs_is_true(made: Path, document: dict[str, Any]) -> None:
    rows, cost = read_rows(made), document["cost"]
    assert (cost["measure"], cost["n"], cost["tops"], len(rows)) == ("accuracy", 4, [1], 4 * 5)
    named = [(one["choose"], one["top"], one["act"]) for one in cost["cells"]]
    assert named == [
        ("none", None, "mask"), ("sinks", 1, "mask"), ("sinks", 1, "zero"), ("sinks", 1, "mean"), ("random", 1, "mask"),
    ]  # fmt: skip
    for one in cost["cells"]:
        mine = [
            row for row in rows if (row["choose"], row["top"], row["act"]) == (one["choose"], one["top"], one["act"])
        ]
        assert one["value"]["value"] == np.mean([row["right"] for row in mine])
        assert one["keys_removed"] == (None if one["top"] is None else pytest.approx(one["top"]))
    doses = {(one["choose"], one["top"]): one["dose"] for one in cost["cells"] if one["act"] == "mask"}
    assert doses["none", None] is None
    assert 0 < doses["random", 1] < doses["sinks", 1] <= 1


def test_it_says_which_model_and_how(document: dict[str, Any]) -> None:
    model, settings = document["model"], document["settings"]
    assert (model["name"], model["source"], model["family"], model["layers"]) == (
        "tiny-llada",
        "tiny-llada",
        "llada",
        8,
    )
    assert len(model["weights_sha256"]) == 64
    assert document["made"]["sinklens"] == sinklens.__version__
    assert settings["command"] == (
        "sinklens card tiny-llada --task word_problems --split test --problems 4 --traced 4 --top 1 --draws 1 "
        "--length 16 --steps 8 --batch 32 --seed 0"
    )
    assert settings["sampler"]["name"] == "LLaDASampler"
    assert document["complete"] and document["missing"] == {}


def test_the_folder_is_a_page_a_table_and_parquet(made: Path, document: dict[str, Any]) -> None:
    page = (made / "card.md").read_text("utf-8")
    assert page.startswith("# Sink card: tiny-llada\n")
    for part in sections(document):
        assert f"## {part.title}" in page
    assert "(card.png)" in page and (made / "card.png").stat().st_size > 20_000
    assert document["fingerprint"] in (made / "card.tex").read_text("utf-8")
    assert str(made.parent) not in "".join(
        (made / f"card.{kind}").read_text("utf-8") for kind in ("md", "html", "tex", "json")
    )
    sizes = {path.stem: pq.read_table(path).num_rows for path in (made / "tables").glob("*.parquet")}
    assert sizes["layers"] == 8 and sizes["heads"] == 32 and sizes["cells"] == 5
    assert sizes["tracks"] == document["how"]["tracks"]
    heads = pq.read_table(made / "tables" / "heads.parquet").to_pylist()
    assert {(row["layer"], row["head"]) for row in heads} == {(layer, head) for layer in range(8) for head in range(4)}
    assert all("null" not in str(field.type) for path in (made / "tables").glob("*") for field in pq.read_schema(path))


def test_the_same_command_only_writes_it_again(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in made.glob("card.*")}
    rows = {path: path.stat().st_mtime_ns for path in (made / "removal" / "rows").iterdir()}
    monkeypatch.setattr("sinklens.evaluation.experiment.answer_batch", None)  # would fail if anything was answered
    card("tiny-llada", to=made, json=True, **TINY)
    assert {path: path.read_bytes() for path in made.glob("card.*")} == before
    assert {path: path.stat().st_mtime_ns for path in (made / "removal" / "rows").iterdir()} == rows
    printed = json.loads(capsys.readouterr().out)
    assert printed["to"] == str(made)
    assert {Path(file).name for file in printed["files"]} >= {
        "card.md",
        "card.html",
        "card.png",
        "card.tex",
        "card.json",
    }


def test_another_card_in_the_folder_is_refused(made: Path) -> None:
    with pytest.raises(UsageError, match=r"holds another card: length: 16 there, 8 now; use the same settings"):
        card("tiny-llada", to=made, **TINY | {"length": 8, "steps": 8})
    with pytest.raises(UsageError, match=r"is not empty and holds no card \(.*\); give a new or an empty folder"):
        card("tiny-llada", to=made / "tables", **TINY)
    with pytest.raises(UsageError, match="is a file; give a folder"):
        card("tiny-llada", to=made / "card.md", **TINY)


@pytest.mark.parametrize(("model", "dtype", "said"), [
    ("tiny-dream", None, r"model\.config_sha256: .*model\.name: .tiny-llada. there, .tiny-dream. now"),
    ("tiny-llada", "bfloat16", r"model\.dtype: .float32. there, .bfloat16. now"),
])  # fmt: skip
def test_another_model_is_refused_before_anything_changes(made: Path, model: str, dtype: Any, said: str) -> None:
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=f"holds another card: .*{said}"):
        card(model, to=made, dtype=dtype, **TINY | {"problems": 5})
    assert {path: path.read_bytes() for path in made.rglob("*") if path.is_file()} == before


def test_other_prompts_are_refused_before_anything_changes(made: Path, tmp_path: Path) -> None:
    prompts, before = tmp_path / "mine.txt", (made / "plan.json").read_bytes()
    prompts.write_text("one\ntwo\nthree\nfour\n", "utf-8")
    with pytest.raises(UsageError, match=r"holds another card: prompts_sha256: .* there, .* now; use the same"):
        card("tiny-llada", to=made, prompts=str(prompts), **TINY)
    assert (made / "plan.json").read_bytes() == before


def test_a_folder_without_a_plan_has_no_card(made: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no card: plan\.json cannot be read"):
        write_card(tmp_path)
    (tmp_path / "plan.json").write_text('{"card": 99}')
    with pytest.raises(UsageError, match="is not of a card that this version reads"):
        write_card(tmp_path)
    with pytest.raises(UsageError, match="holds no rows yet"):
        read_rows(tmp_path)


def test_ctrl_c_says_how_to_go_on(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pressed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sinklens.evaluation.card.run_experiment", pressed)
    with pytest.raises(typer.Exit) as end:
        card("tiny-llada", to=made, **TINY)
    assert end.value.exit_code == 130
    assert not was_interrupted(end.value)  # else the program would say it once more
    assert f"the same command with --to {made} goes on" in capsys.readouterr().err


def test_a_model_that_does_no_task_is_scored_on_text(
    tmp_path: Path, tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "some.txt"
    text.write_text("the cat sat on the mat and the dog ran " * 40, "utf-8")
    settings = {"problems": 3, "traced": 2, "length": 4, "top": "1", "draws": 1, "device": "cpu"}
    card(str(tiny_llama), text=text, chunk=24, to=tmp_path / "card", json=True, **settings)
    found = json.loads(capsys.readouterr().out)
    assert (found["cost"]["measure"], found["cost"]["unit"], found["cost"]["n"]) == ("nll", "chunk", 3)
    assert found["settings"]["measured_on"].startswith("some.txt (sha256 ")
    assert found["settings"]["prompts_from"] == found["settings"]["measured_on"]
    assert "the last 12 of 24 tokens" in found["settings"]["answered_by"]
    unmasked = found["cost"]["cells"][0]["value"]["value"]
    assert 0 < unmasked < 20
    page = (tmp_path / "card" / "card.md").read_text("utf-8")
    assert "| nothing | " + f"{unmasked:.3f}" in page


def test_a_bound_says_its_masks_and_their_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "some.txt"
    text.write_text("the cat sat on the mat and the dog ran " * 40, "utf-8")
    settings = {"problems": 2, "traced": 1, "length": 4, "top": "1", "draws": 1, "elbo_draws": 6, "device": "cpu"}
    card("tiny-llada", text=text, chunk=16, to=tmp_path / "card", json=True, **settings)
    found = json.loads(capsys.readouterr().out)
    errors = [one["error"] for one in found["cost"]["cells"]]
    assert found["cost"]["measure"] == "elbo" and min(errors) > 0
    told = f"nats a token, a bound by 6 random masks a chunk, Monte-Carlo error of a cell at most {max(errors):.2g}."
    assert told in (tmp_path / "card" / "card.md").read_text("utf-8")
    assert "--chunk 16 --elbo-draws 6 --problems 2" in found["settings"]["command"]
    table = pq.read_table(tmp_path / "card" / "tables" / "cells.parquet")
    assert table["error"].to_pylist() == errors
    with pytest.raises(UsageError, match=r"holds another card: elbo_draws: 6 there, 4 now"):
        card("tiny-llada", text=text, chunk=16, to=tmp_path / "card", **settings | {"elbo_draws": 4})


def test_a_bound_has_as_many_masks_as_specified() -> None:
    from sinklens.evaluation.elbo import DRAWS

    assert inspect.signature(card).parameters["elbo_draws"].default == DRAWS == 128


@pytest.mark.parametrize(
    ("given", "length", "block"),
    [({}, 256, 32), ({"length": 64}, 64, 32), ({"length": 100}, 100, None), ({"length": 64, "block": 16}, 64, 16)],
)
def test_published_tasks_are_answered_as_evaluate_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, int], length: int, block: int | None
) -> None:
    done: list[Any] = []

    def noted(work: Any) -> None:
        done.append(work.plan.answering)
        raise UsageError("enough")

    monkeypatch.setattr("sinklens.cli.card._Work.do", noted)
    data = Path(__file__).parents[1] / "data" / "tasks" / "gsm8k"
    with pytest.raises(UsageError, match="enough"):
        card("tiny-llada", task="gsm8k", data=data, problems=1, traced=1, to=tmp_path / "a", device="cpu", **given)
    assert (done[0].length, done[0].block) == (length, block)


def test_prompts_of_a_file_are_traced(made: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "mine.txt"
    prompts.write_text("one\ntwo\nthree\n", "utf-8")
    with pytest.raises(UsageError, match=r"holds another card: .*; traced: 4 there, 2 now"):
        card("tiny-llada", to=made, prompts=str(prompts), **TINY | {"traced": 2})


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has a number of keys below 1"):
        card("tiny-llada", top="0,1", to=tmp_path / "a")
    with pytest.raises(UsageError, match="two ways to measure"):
        card("tiny-llada", text=tmp_path / "a", data=tmp_path / "b", to=tmp_path / "a")
    with pytest.raises(UsageError, match="unknown task 'sums'"):
        card("tiny-llada", task="sums", to=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_every_option_has_a_meaning() -> None:
    for parameter in inspect.signature(card).parameters.values():
        (said,) = parameter.annotation.__metadata__
        assert said.help, parameter.name


@pytest.mark.parametrize(
    ("module", "absent"), [("report.card", "torch"), ("cli.card", "numpy"), ("evaluation.card", "scipy")]
)
def test_heavy_libraries_wait_until_they_are_needed(shell: Any, module: str, absent: str) -> None:
    done = shell(sys.executable, "-c", f"import sys, sinklens.{module}; sys.exit({absent!r} in sys.modules)")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_model_that_does_no_task_is_refused_with_what_to_do(tiny_llama: Path, tmp_path: Path) -> None:
    """Unless the task was asked for by name: then its card says that it solves nothing."""
    small: dict[str, Any] = {**TINY, "problems": 2, "traced": 2, "length": 4, "steps": None}
    unasked = {name: value for name, value in small.items() if name != "task"}
    message = (
        r"tiny-llama solves none of the first 2 problems of word_problems, so that .* cannot be seen there; give "
        r"--text FILE .* or --task word_problems for a card all the same"
    )
    with pytest.raises(UsageError, match=message):
        card(str(tiny_llama), to=tmp_path / "a", **unasked)
    assert not (tmp_path / "a").exists()
    card(str(tiny_llama), to=tmp_path / "a", **small)
    page = (tmp_path / "a" / "card.md").read_text("utf-8")
    assert "Untouched it solves 0.0 % of the problems, too few for a cost to show" in page and "costs 0.0" not in page
    assert (
        json.loads((tmp_path / "a" / "card.json").read_text("utf-8"))["what"]["value_effect"]["reading"] == "undecided"
    )
    card(str(tiny_llama), to=tmp_path / "a", **unasked)  # it is there, and nothing is tried again
