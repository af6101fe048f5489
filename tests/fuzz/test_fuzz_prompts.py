"""Hostile prompts, through `sl.generate` and the command line, and files of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import sinklens as sl
from fuzz.damage import damaged, mutated, texts, values
from fuzz.held import fuzzed, held, held_command
from sinklens.errors import UsageError
from sinklens.sampling.prompt import read_prompt
from sinklens.sampling.prompt_list import as_prompts, read_prompt_file

SPECIAL = (
    "",
    " ",
    "\n",
    "\x00",
    "w1\x00w2",
    "\x1b[2J\x1b]0;title\x07w1",
    "\u202e1w 2w\u202c",
    "\u0645\u0631\u062d\u0628\u0627",
    "\U0001f9d1\u200d\U0001f680",
    "\ud800",  # half of a pair: what a JSON file can bring
    "w1 \udcff w2",  # a byte that is no UTF-8: what an argument can bring
    "<|eot_id|><|startoftext|>",
    "{role}{content}{0.__class__}",
    "-",
    "--help",
)
MEGABYTE = 1_000_000


def prompts() -> st.SearchStrategy[str]:
    return st.sampled_from(SPECIAL) | texts() | st.text(st.sampled_from("w1234 <|>\n\x00\u202e\ud800"), max_size=60)


class Speakers(dict[str, Any]):
    """Models by their family, in few words where a failing case is printed."""

    def __repr__(self) -> str:
        return "speakers"


@pytest.fixture(scope="module")
def speakers(models: dict[str, Path]) -> Speakers:
    return Speakers({name: sl.load(models[name]) for name in ("llada", "dream", "llama", "gpt2")})


SAMPLERS: dict[str, Any] = {
    "llada": sl.LLaDASampler(steps=1, length=2, block=2),
    "dream": sl.DreamSampler(steps=1, length=2),
    "llama": sl.AutoregressiveSampler(length=1),
    "gpt2": sl.AutoregressiveSampler(length=1),
}


@example(family="llada", prompt="\ud800")
@example(family="llama", prompt=["w1", "\udcff"])
@given(family=st.sampled_from(tuple(SAMPLERS)), prompt=prompts() | st.lists(prompts(), max_size=3))
@fuzzed(90)
def test_prompts_of_generate(family: str, prompt: Any, speakers: Speakers) -> None:
    held(lambda: sl.generate(speakers[family], prompt, SAMPLERS[family]))


@example(prompt=[10**30])
@example(prompt=[[1], [True]])
@given(prompt=st.lists(prompts() | values(), max_size=3) | values())
@fuzzed(40)
def test_what_is_no_prompt(prompt: Any, speakers: Speakers) -> None:
    held(lambda: read_prompt(speakers["llama"], prompt))


@pytest.mark.parametrize("family", SAMPLERS)
@pytest.mark.parametrize(
    "text", ["w1 " * (MEGABYTE // 3), "x" * MEGABYTE, "\U0001f680" * (MEGABYTE // 4), "\x00" * MEGABYTE]
)
def test_a_prompt_of_a_megabyte(family: str, text: str, speakers: Speakers) -> None:
    """Refused by its length before anything is computed, or answered where the tokenizer makes little of it."""
    held(lambda: sl.generate(speakers[family], text, SAMPLERS[family]))


def test_a_prompt_far_past_what_the_model_promises_is_refused(speakers: Speakers) -> None:
    with pytest.raises(UsageError, match="the prompt has 333333 tokens; this model promises 64 positions"):
        sl.generate(speakers["llama"], "w1 " * 333_333, SAMPLERS["llama"])


@example(family="llama", prompt="w1 \udcff w2", chat=False)
@given(family=st.sampled_from(("llada", "llama")), prompt=prompts(), chat=st.booleans())
@fuzzed(50)
def test_prompts_of_the_command_line(
    family: str, prompt: str, chat: bool, models: dict[str, Path], tmp_path: Path
) -> None:
    more = ["--chat"] if chat else []
    more += ["--steps", "1", "--block", "2"] if family == "llada" else []
    out = tmp_path / "out"
    arguments = ["generate", str(models[family]), f"--prompt={prompt}", "--length", "2", *more]
    left = held_command(*arguments, "--no-live", "--json", out=out)
    assert left.code != 0 or json.loads(left.out)["prompts"] == 1


LINES = {"prompt": "w1", "prompt_ids": [1, 2], "messages": [{"role": "user", "content": "w1"}]}


def lines(name: str) -> st.SearchStrategy[bytes]:
    whole = json.dumps({name: LINES[name]}).encode()
    return mutated({name: LINES[name]}).map(lambda entry: json.dumps(entry).encode()) | damaged(whole)


@example(content=b'{"prompt": ' + b"[" * 100_000, speak=False)
@example(content=b'{"prompt": "\\ud800"}', speak=True)
@example(content=b'{"prompt_ids": [1000000000000000000000000000000]}', speak=True)
@given(content=st.sampled_from(tuple(LINES)).flatmap(lines) | st.binary(max_size=40), speak=st.booleans())
@fuzzed(60)
def test_files_of_prompts(content: bytes, speak: bool, models: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    if not speak:
        held(lambda: read_prompt_file(str(path)), source=tmp_path)
        return
    held_command(
        "generate", str(models["llama"]), "--prompts", str(path), "--length", "1", "--no-live", out=tmp_path / "o"
    )


@given(given_prompts=values() | st.lists(st.lists(st.integers() | texts())) | texts())
@fuzzed(40)
def test_what_callers_call_prompts(given_prompts: Any) -> None:
    held(lambda: as_prompts(given_prompts))


@given(ids=texts() | st.lists(st.integers()).map(lambda some: ",".join(map(str, some))))
@fuzzed(20)
def test_ids_of_the_command_line(ids: str, models: dict[str, Path], tmp_path: Path) -> None:
    held_command(
        "generate", str(models["llama"]), f"--prompt-ids={ids}", "--length", "1", "--no-live", out=tmp_path / "o"
    )
