"""Prompts from options and files: forms, order, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sinklens.cli.prompts import collect_prompts
from sinklens.errors import UsageError
from sinklens.sampling.prompt_list import Prompt, as_prompts, read_prompt_file


def test_texts_keep_their_order_and_spaces() -> None:
    assert collect_prompts([" b ", "a"], [], None) == [Prompt(text=" b "), Prompt(text="a")]


@pytest.mark.parametrize("text", ["1,2,3", "1, 2, 3", "1 2 3"])
def test_ids_are_separated_by_commas_or_blanks(text: str) -> None:
    assert collect_prompts([], [text], None) == [Prompt(ids=(1, 2, 3))]


@pytest.mark.parametrize("text", ["1,x", "1.5", "one"])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is no list of token ids; expected e\.g\. 1,2,3"):
        collect_prompts([], [text], None)


def test_an_empty_list_of_ids_is_refused() -> None:
    with pytest.raises(UsageError, match="--prompt-ids is empty"):
        collect_prompts([], [","], None)


def test_no_source_is_refused() -> None:
    with pytest.raises(UsageError, match="exactly one of --prompt, --prompt-ids, --prompts; got none of them"):
        collect_prompts([], [], None)


def test_two_sources_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="got --prompt and --prompts"):
        collect_prompts(["a"], [], "file.txt")


def test_a_text_file_has_one_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text('first\n\n {"not": "json here"}\n', "utf-8")
    assert read_prompt_file(str(path)) == [Prompt(text="first"), Prompt(text=' {"not": "json here"}')]


def test_a_jsonl_file_holds_every_form(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    message = {"role": "user", "content": "line\u2028separator"}
    entries = [{"prompt": "text"}, {"prompt_ids": [4, 5]}, {"messages": [message]}]
    path.write_text("\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries), "utf-8")
    assert read_prompt_file(str(path)) == [Prompt(text="text"), Prompt(ids=(4, 5)), Prompt(messages=(message,))]


@pytest.mark.parametrize(
    "line",
    [
        '{"text": "a"}',
        "[1]",
        '{"prompt_ids": []}',
        '{"prompt_ids": [true]}',
        '{"messages": [{"role": "user"}]}',
    ],
)
def test_a_jsonl_line_that_is_no_prompt_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "fine"}}\n\n{line}\n', "utf-8")
    with pytest.raises(UsageError, match=r"line 3 of .*prompts\.jsonl is no prompt; expected"):
        read_prompt_file(str(path))


def test_a_jsonl_line_that_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("hello\n", "utf-8")
    with pytest.raises(UsageError, match=r"line 1 of .* is not JSON"):
        read_prompt_file(str(path))


def test_a_missing_or_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the prompts of"):
        read_prompt_file(str(tmp_path / "none.txt"))
    (tmp_path / "empty.txt").write_text("\n \n", "utf-8")
    with pytest.raises(UsageError, match="holds no prompt; write one a line"):
        read_prompt_file(str(tmp_path / "empty.txt"))


ASKED = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("one", [Prompt(text="one")]),
        (["one", "two"], [Prompt(text="one"), Prompt(text="two")]),
        ([1, 2], [Prompt(ids=(1, 2))]),
        ([[1, 2], [3]], [Prompt(ids=(1, 2)), Prompt(ids=(3,))]),
        (torch.tensor([[1, 2], [3, 4]]), [Prompt(ids=(1, 2)), Prompt(ids=(3, 4))]),
        ([torch.tensor([1, 2]), torch.tensor([3])], [Prompt(ids=(1, 2)), Prompt(ids=(3,))]),
        ([ASKED], [Prompt(messages=(ASKED,))]),
        ([[ASKED], "b"], [Prompt(messages=(ASKED,)), Prompt(text="b")]),
    ],
)
def test_prompts_of_a_caller_come_in_many_forms(given: Any, expected: list[Prompt]) -> None:
    assert as_prompts(given) == expected


def test_a_path_is_a_file_and_what_is_no_prompt_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("a\nb\n")
    assert as_prompts(tmp_path / "p.txt") == [Prompt(text="a"), Prompt(text="b")]
    with pytest.raises(UsageError, match="is the name of a file; for the prompts in it pass Path"):
        as_prompts(str(tmp_path / "p.txt"))
    for wrong in ([], None, 3, [["a"]], [1.5]):
        with pytest.raises(UsageError, match="expected a text"):
            as_prompts(wrong)
