"""`sinklens generate` on the golden checkpoints, as a user runs it."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from sinklens.cli.samplers import SamplerOptions, build_sampler


def case(folder: Path, name: str) -> dict[str, Any]:
    cases = json.loads((folder / "generation.json").read_text())["cases"]
    return next(one for one in cases if one["name"] == name)


def ids(row: list[int]) -> str:
    return ",".join(map(str, row))


def test_llada_gives_the_golden_tokens(process, llada: Path) -> None:
    golden = case(llada, "block4_cfg1.5")
    prompts = [part for row in golden["prompt_ids"] for part in ("--prompt-ids", ids(row))]
    done = process("generate", llada, *prompts, "--length", 16, "--block", 4, "--cfg", 1.5, "--json", "--batch", 2)
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert [row["prompt_ids"] + row["ids"] for row in document["results"]] == golden["output_ids"]
    assert document["family"] == "llada" and document["interrupted"] is False
    assert document["sampler"]["name"] == "LLaDASampler"
    assert (document["sampler"]["steps"], document["sampler"]["block"]) == (16, 4)
    assert document["dtype"] == "float32"
    assert all(row["finished"] and row["text"] is None for row in document["results"])


def test_dream_gives_the_golden_tokens_one_prompt_after_the_other(sinklens, dream: Path) -> None:
    golden = case(dream, "entropy_steps16")
    prompts = [part for row in golden["prompt_ids"] for part in ("--prompt-ids", ids(row))]
    done = sinklens("generate", dream, *prompts, "--length", 16)
    assert (done.returncode, done.stderr) == (0, "")
    expected = [" ".join(map(str, row[9:])) for row in golden["output_ids"]]
    assert done.stdout.splitlines() == ["[1]", expected[0], "[2]", expected[1]]


def test_mmada_draws_the_golden_tokens_from_its_seed(sinklens, mmada: Path, tmp_path: Path) -> None:
    seeded = [
        one
        for one in json.loads((mmada / "generation.json").read_text())["cases"]
        if one["settings"].get("temperature", 0) > 0 and one["settings"]["remasking"] == "low_confidence"
    ]
    golden, settings = seeded[0], seeded[0]["settings"]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt_ids": row}) for row in golden["prompt_ids"]))
    options = [
        "--steps",
        settings["steps"],
        "--block",
        settings["block_length"],
        "--length",
        settings["gen_length"],
    ]
    options += [
        "--temperature",
        settings["temperature"],
        "--cfg",
        settings["cfg_scale"],
        "--seed",
        golden["seed"],
    ]
    done = sinklens("generate", mmada, "--prompts", file, "--batch", 2, "--json", *options)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert [row["prompt_ids"] + row["ids"] for row in results] == golden["output_ids"]


def test_batches_get_different_seeds_and_the_same_ones_again(sinklens, llada: Path) -> None:
    arguments = [
        "generate",
        llada,
        *["--prompt-ids", "1,2,3"] * 2,
        "--length",
        8,
        "--temperature",
        1,
        "--seed",
        5,
    ]
    first, again = (json.loads(sinklens(*arguments, "--json").stdout)["results"] for _ in range(2))
    assert first[0]["ids"] != first[1]["ids"]
    assert [row["ids"] for row in first] == [row["ids"] for row in again]


def test_to_writes_the_document_and_keeps_an_earlier_one(sinklens, llada: Path, tmp_path: Path) -> None:
    arguments = ["generate", llada, "--prompt-ids", "1,2", "--length", 4, "--json", "--to", tmp_path / "out"]
    done = sinklens(*arguments)
    assert done.returncode == 0
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == json.loads(done.stdout)
    again = sinklens(*arguments)
    assert (again.returncode, again.stdout) == (2, "")
    assert "result.json exists; choose another folder" in again.stderr


def test_prompts_come_from_stdin_and_text_needs_a_tokenizer(sinklens, llada: Path) -> None:
    done = sinklens("generate", llada, "--prompts", "-", stdin="hello\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no tokenizer; use --prompt-ids 1,2,3" in done.stderr


def test_chat_is_for_text(sinklens, llada: Path) -> None:
    done = sinklens("generate", llada, "--prompt-ids", "1,2", "--chat")
    assert done.returncode == 2 and "--chat formats text, but the prompt is ids" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--alg", "entropy"], "--alg is no setting of LLaDASampler, which 'llada' models use; it takes"),
        (["--remasking", "lowest"], "unknown remasking 'lowest'"),
        (["--length", "10", "--block", "4"], "length 10 is not a multiple of block 4"),
        (["--dtype", "int8"], "dtype is 'int8'; expected one of"),
    ],
)
def test_settings_that_do_not_fit_are_misuse(sinklens, llada: Path, options: list[str], message: str) -> None:
    done = sinklens("generate", llada, "--prompt-ids", "1,2", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_ids_out_of_range_are_misuse(sinklens, llada: Path) -> None:
    done = sinklens("generate", llada, "--prompt-ids", "1,4000")
    assert done.returncode == 2 and "4000" in done.stderr


def test_ctrl_c_prints_and_writes_the_canvas_so_far(llada: Path, tmp_path: Path, running) -> None:
    out = tmp_path / "out"
    process = running(
        "generate",
        llada,
        "--prompt-ids",
        "1,2,3",
        "--prompt-ids",
        "4",
        "--length",
        2048,
        "--json",
        "--to",
        out,
    )
    line = process.stderr.readline()  # two seconds into the run
    assert line.startswith("step "), line
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted: this is the canvas so far" in stderr and "Traceback" not in stderr
    document = json.loads(stdout)
    assert json.loads((out / "result.json").read_text()) == document
    assert document["interrupted"] is True and document["prompts"] == 2
    (row,) = document["results"]
    assert row["finished"] is False and row["prompt_ids"] == [1, 2, 3]
    assert 0 < row["length"] == sum(token != 125 for token in row["ids"]) < len(row["ids"]) == 2048


def test_the_family_decides_the_sampler_and_its_defaults() -> None:
    llada, dream, llama = (build_sampler(family, SamplerOptions(length=48)) for family in ("llada", "dream", "llama"))
    assert (llada.steps, llada.block) == (48, 48)
    assert (dream.steps, dream.alg) == (48, "entropy")
    assert (type(llama).__name__, llama.length) == ("AutoregressiveSampler", 48)
    default = build_sampler("mmada", SamplerOptions())
    assert (default.length, default.steps, default.block) == (128, 128, 32)


def test_text_goes_in_and_comes_out(sinklens, talking_llada: Path) -> None:
    done = sinklens("generate", talking_llada, "--prompt", "w5 w6 w7", "--length", 8, "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["results"]
    assert (row["prompt"], row["prompt_ids"]) == ("w5 w6 w7", [5, 6, 7])
    assert row["text"].split()[0] == f"w{row['ids'][0]}"
    plain = sinklens("generate", talking_llada, "--prompt", "w5 w6 w7", "--length", 8)
    assert plain.stdout == row["text"] + "\n"


def test_chat_and_messages_give_the_same_prompt(sinklens, talking_llada: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text(json.dumps({"messages": [{"role": "user", "content": "w5"}]}))
    by_option, by_file = (
        json.loads(sinklens("generate", talking_llada, *source, "--length", 4, "--json").stdout)["results"][0]
        for source in (["--prompt", "w5", "--chat"], ["--prompts", file])
    )
    assert by_option["prompt_ids"] == by_file["prompt_ids"] == [100, 101, 98, 102, 5, 103, 101, 99, 102]
    assert by_option["ids"] == by_file["ids"]


def test_a_causal_model_is_continued_token_by_token(sinklens, tiny_llama: Path) -> None:
    arguments = ["generate", tiny_llama, "--prompt", "w5 w6", "--prompt", "w9", "--length", 6, "--json"]
    document = json.loads(sinklens(*arguments).stdout)
    assert document["sampler"] == {
        "name": "AutoregressiveSampler",
        "length": 6,
        "temperature": 0.0,
        "top_p": None,
    }
    assert [row["prompt_ids"] for row in document["results"]] == [[5, 6], [9]]
    batched = json.loads(sinklens(*arguments, "--batch", 2).stdout)
    assert [row["ids"] for row in batched["results"]] == [row["ids"] for row in document["results"]]
    refused = sinklens(*arguments, "--steps", 6)
    assert refused.returncode == 2
    assert "--steps is no setting of AutoregressiveSampler, which 'llama' models use" in refused.stderr


def test_ctrl_c_shows_masked_positions_as_blocks(talking_llada: Path, running) -> None:
    process = running("generate", talking_llada, "--prompt", "w5", "--length", 2048)
    assert process.stderr.readline().startswith("step ")
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.search(r"w\d+", stdout) and stdout.endswith("░" * 100 + "\n")


def test_a_terminal_sees_the_canvas_and_stdout_only_the_result(talking_llada: Path, running_on_terminal) -> None:
    seen, stdout, code = running_on_terminal("generate", talking_llada, "--prompt", "w5 w6 w7", "--length", 8)
    assert code == 0
    assert "step 8/8" in seen and "\x1b[1;32m" in seen
    assert "step" not in stdout and "\x1b" not in stdout and stdout.startswith("w")
    seen, again, _ = running_on_terminal("generate", talking_llada, "--prompt", "w5 w6 w7", "--length", 8, "--no-live")
    assert (seen, again) == ("", stdout)
