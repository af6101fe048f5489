"""`sinklens generate` on the golden checkpoints, as a user runs it."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from sinklens.cli.batches import generate_document
from sinklens.cli.samplers import SamplerOptions, build_sampler
from sinklens.models.load import load
from sinklens.sampling.llada import LLaDASampler
from sinklens.sampling.prompt_list import Prompt

REFERENCE = str(Path(__file__).parent / "reference_llada.py")


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
    assert "has no tokenizer; give ids (--prompt-ids 1,2,3 on" in done.stderr


def test_chat_is_for_text(sinklens, llada: Path) -> None:
    done = sinklens("generate", llada, "--prompt-ids", "1,2", "--chat")
    assert done.returncode == 2 and "the chat format is for text, but the prompt is ids" in done.stderr


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
    assert line.startswith("[1/2] step "), line
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
        "cache": True,
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


def test_masks_that_are_left_are_no_finished_row(sinklens, llada: Path, talking_llada: Path) -> None:
    # Confidences far apart: on a canvas of nothing but masks they are equal, and rounding decides.
    arguments = ["--prompt-ids", "77,40,125", "--prompt-ids", "7,8,9", "--length", 4]
    done = sinklens("generate", llada, *arguments, "--json")
    assert done.returncode == 0
    first, second = json.loads(done.stdout)["results"]
    assert first["ids"].count(125) == 1 and first["finished"] is False  # the prompt's mask took a slot
    assert 125 not in second["ids"] and second["finished"] is True
    (line,) = done.stderr.splitlines()
    assert line.startswith("warning: prompt 1 is not finished: 1 of 4 positions are still masked (masks in the prompt")
    assert "░" in sinklens("generate", llada, *arguments).stdout.splitlines()[1]
    assert "░" in sinklens("generate", talking_llada, *arguments).stdout.splitlines()[1]


def test_masks_behind_an_early_end_are_no_news(mmada: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`stop_at_eos` leaves what stands behind the end of the turn as it is."""
    found = case(mmada, "mmu_generate_fast_stop")
    sampler = LLaDASampler(steps=16, length=16, block=4, stop_at_eos=True, eot_id=found["settings"]["eot_token"])
    prompt = Prompt(ids=tuple(found["prompt_ids"][0]))
    document = generate_document(load(mmada), [prompt], sampler, chat=False, batch=1, seed=None, live=False)
    (row,) = document["results"]
    assert row["ids"] == found["output_ids"][0][9:] and row["ids"].count(document["mask_id"]) == 8
    assert row["finished"] is True and capsys.readouterr().err == ""


def test_a_seed_that_torch_does_not_take(sinklens, llada: Path) -> None:
    done = sinklens("generate", llada, "--prompt-ids", "1", "--seed", 2**70)
    assert done.returncode == 2
    assert done.stderr == f"error: seed is {2**70}; expected an integer from -2**63 to 2**64 - 1\n"
    # The seed of the second batch counts too, before anything is loaded.
    last = sinklens("generate", llada, "--prompt-ids", "1", "--prompt-ids", "2", "--seed", 2**64 - 1)
    assert last.returncode == 2 and f"seed is {2**64}; expected" in last.stderr


@pytest.mark.parametrize("command", [["generate", "--prompt-ids", "1"], ["verify", "--reference", REFERENCE]])
def test_a_folder_that_cannot_be_written(sinklens, llada: Path, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "file").touch()
    where = tmp_path / "file" / "out"
    done = sinklens(command[0], llada, *command[1:], "--to", where)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: cannot write to {where} (Not a directory); choose another folder")


def test_no_length_is_called_so(sinklens, llada: Path, dream: Path) -> None:
    for model in (llada, dream):
        done = sinklens("generate", model, "--prompt-ids", "1", "--length", 0)
        assert done.returncode == 2 and "Invalid value for '--length'" in done.stderr


def test_a_model_that_does_not_speak_is_refused_before_its_weights_are_read(sinklens, tmp_path: Path) -> None:
    from transformers import BertConfig

    config = BertConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
    config.architectures = ["BertForMaskedLM"]
    config.save_pretrained(tmp_path / "bert")  # and no weights
    done = sinklens("generate", tmp_path / "bert", "--prompt-ids", "1")
    assert done.returncode == 2
    assert "('bert') is neither causal nor a masked diffusion model" in done.stderr
    assert "so it cannot be generated from; choose another model" in done.stderr
    assert json.loads(sinklens("models", tmp_path / "bert", "--json").stdout)["sampler"] is None


def test_a_warning_is_one_line(process, llada: Path, tmp_path: Path) -> None:
    short = tmp_path / "short"
    shutil.copytree(llada, short)
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps({**config, "max_sequence_length": 8}))
    done = process("generate", short, "--prompt-ids", "1,2,3", "--length", 8)
    assert done.returncode == 0
    assert re.fullmatch(r"warning: 11 positions; the config of this llada model promises 8: .*\n", done.stderr)


def test_a_log_gets_no_progress_bars(process, tiny_llama: Path) -> None:
    quiet = process("generate", tiny_llama, "--prompt", "w5", "--length", 4)
    assert (quiet.returncode, quiet.stderr) == (0, "")


def test_api_words_stay_out_of_messages(sinklens, llada: Path, dream: Path) -> None:
    for model, options in ((dream, ["--top-p", "2"]), (llada, ["--dtype", "int8"]), (llada, ["--device", "cuda:99"])):
        done = sinklens("generate", model, "--prompt-ids", "1", *options)
        assert done.returncode == 2, done.stderr
        assert "None" not in done.stderr and "=" not in done.stderr


def test_a_terminal_is_told_which_prompt_runs(talking_llada: Path, running_on_terminal) -> None:
    prompts = [part for word in ("w5", "w6", "w7") for part in ("--prompt", word)]
    seen, _, _ = running_on_terminal("generate", talking_llada, *prompts, "--length", 4)
    assert "[1/3] step 4/4" in seen and "[3/3] step 4/4" in seen
    seen, _, _ = running_on_terminal("generate", talking_llada, *prompts, "--length", 4, "--batch", 2)
    assert "[1-2/3] step 4/4" in seen and "[3/3] step 4/4" in seen
