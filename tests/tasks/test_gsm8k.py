"""GSM8K: its own answers are right, prompts and grades follow the harness, files of every published kind are read."""

import gzip
import json
import shutil
from itertools import islice
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.models.catalog import KNOWN
from sinklens.tasks import BENCHMARKS, TASKS, presets, task
from sinklens.tasks.gsm8k import SPLITS, cut, grade, grades, items
from sinklens.tasks.item import Item

SAMPLE = Path(__file__).parents[1] / "data" / "tasks" / "gsm8k"


def rows(split: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (SAMPLE / f"{split}.jsonl").read_text("utf-8").splitlines()]


def asking(number: str) -> Item:
    """A problem with this number as its answer."""
    return Item(task="gsm8k", split="test", index=0, template="", prompt="", answer="", facts={"answer": number})


@pytest.mark.parametrize("split", SPLITS)
def test_its_own_answers_are_right_by_both_rules(split: str) -> None:
    all_items = list(items(split, data=SAMPLE))
    assert len(all_items) == {"test": 20, "train": 12}[split]
    for item in all_items:
        assert grades(item, item.answer) == {"strict": True, "flexible": True}
        assert grade(item, item.answer)
        assert grades(item, "") == {"strict": False, "flexible": False}
        off_by_one = item.answer.rpartition("####")[0] + f"#### {int(item.facts['answer']) + 1}"
        assert grades(item, off_by_one) == {"strict": False, "flexible": False}


def test_numbers_are_read_from_solutions_without_commas() -> None:
    numbers = {item.index: item.facts["answer"] for item in items("test", data=SAMPLE)}
    assert [numbers[index] for index in (0, 15, 16, 19)] == ["18", "2125", "114200", "-10"]


@pytest.mark.parametrize(
    ("number", "text", "strict", "flexible"),
    [
        ("18", " 9 * 2 = 18\n#### 18", True, True),
        ("18", "#### 18.", True, True),
        ("18", "#### 18.00", False, False),  # text is compared, not value
        ("18", "####18", False, True),
        ("18", "#### $18", False, True),
        ("18", "The answer is $18.", False, True),
        ("18", "The answer is 18 dollars", False, True),
        ("18", "The answer is 18...", False, False),
        ("18", "#### 18\n\nThat was 7 more.", True, False),
        ("18", "#### 7\n#### 18", False, True),
        ("18", "#### 18\n\nQuestion: 5 + 5?\nAnswer: #### 10", True, True),
        ("18", "Question: #### 18", False, False),
        ("18", "#### 18</s>99", True, True),
        ("18", "#### 18<|im_end|>99", True, True),
        ("18", "#### 180", False, False),
        ("18", "no number", False, False),
        ("1800", "#### 1,800", True, True),
        ("1800", "$1,800", False, True),
        ("-3", "#### -3", True, True),
        ("-3", "so 3", False, False),
        ("5", "It is 5", False, True),  # one digit: the second half of the flexible rule
        ("5", "It is 5, I think.", False, True),
        ("5", "It is 5, I think...", False, False),  # two full stops or more count as a number there
    ],
)
def test_grades_as_the_harness_gives_them(number: str, text: str, strict: bool, flexible: bool) -> None:
    assert grades(asking(number), text) == {"strict": strict, "flexible": flexible}
    assert grade(asking(number), text) == strict


@given(st.integers(-(10**9), 10**9), st.text("0123456789 .,$#-\nQx", max_size=40))
def test_a_marked_number_is_found_behind_any_text(number: int, before: str) -> None:
    item = asking(str(number))
    clean = before.replace("####", "").rstrip("#")
    assert grades(item, f"{clean}\n#### {number:,}") == {"strict": True, "flexible": True}
    assert not any(grades(item, f"{clean}\n#### {number + 1}").values())


def test_a_text_counts_up_to_the_first_stop() -> None:
    assert cut(" 4\n#### 4\n\nQuestion: next </s>") == " 4\n#### 4\n\n"
    assert cut("a</s>b Question: c") == "a"
    assert cut("nothing to cut") == "nothing to cut"


def test_a_prompt_without_examples() -> None:
    first = next(items("test", data=SAMPLE, shots=0))
    row = rows("test")[0]
    assert first.prompt == f"Question: {row['question']}\nAnswer:"
    assert first.answer == f" {row['answer']}"
    assert (first.task, first.split, first.index, first.template) == ("gsm8k", "test", 0, "question-answer")


def test_examples_are_drawn_as_the_harness_draws_them() -> None:
    """One generator for the whole file: the examples of problem i come from its i-th draw."""
    training, drawing = rows("train"), Random(1234)
    for item, row in zip(items("test", data=SAMPLE), rows("test"), strict=True):
        shown = drawing.sample(training, 5)
        blocks = [f"Question: {example['question']}\nAnswer: {example['answer']}" for example in shown]
        assert item.prompt == "\n\n".join([*blocks, f"Question: {row['question']}\nAnswer:"])
        assert item.template.split()[1:] == [f"train.{training.index(example)}" for example in shown]


def test_a_training_problem_is_no_example_of_itself() -> None:
    for shots in (3, 11):
        for seed in range(20):
            for item in items("train", data=SAMPLE, seed=seed, shots=shots):
                shown = item.template.split()[1:]
                assert len(set(shown)) == shots
                assert f"train.{item.index}" not in shown


def test_an_item_depends_on_seed_and_index_alone() -> None:
    whole = list(items("test", data=SAMPLE, seed=3))
    assert list(islice(items("test", data=SAMPLE, seed=3, start=7), 4)) == whole[7:11]
    assert [item.index for item in whole] == list(range(20))
    assert [item.prompt for item in items("test", data=SAMPLE, seed=4)] != [item.prompt for item in whole]
    assert list(items("test", data=SAMPLE, start=20)) == []


def test_every_published_form_is_read(tmp_path: Path) -> None:
    expected = list(items("test", data=SAMPLE))
    assert list(items("test", data=str(SAMPLE / "test.jsonl"))) == expected  # examples from the folder of the file
    hub, zipped = tmp_path / "hub", tmp_path / "zipped"
    (hub / "main").mkdir(parents=True)
    zipped.mkdir()
    for split in SPLITS:
        pq.write_table(pa.Table.from_pylist(rows(split)), hub / "main" / f"{split}-00000-of-00001.parquet")
        (zipped / f"{split}.jsonl.gz").write_bytes(gzip.compress((SAMPLE / f"{split}.jsonl").read_bytes()))
    for data in (hub, hub / "main", hub / "main" / "test-00000-of-00001.parquet", zipped):
        assert list(items("test", data=data)) == expected


def test_a_line_separator_inside_a_text_does_not_end_the_row(tmp_path: Path) -> None:
    row = {"question": "one\u2028two\x85three", "answer": "#### 4"}
    (tmp_path / "test.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n\n", "utf-8")
    (item,) = items("test", data=tmp_path, shots=0)
    assert item.prompt == "Question: one\u2028two\x85three\nAnswer:"


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"gsm8k reads its problems from a file.*give data=PATH \(--data PATH\): a folder"
    ):
        items("test")
    with pytest.raises(UsageError, match=r"data of gsm8k is 5; give a path: a folder with test.jsonl"):
        items("test", data=5)
    with pytest.raises(UsageError, match=r"missing, which is not there; give a folder with test.jsonl and train.jsonl"):
        items("test", data=tmp_path / "missing")
    with pytest.raises(
        UsageError, match=r"does not hold the problems: none of test.jsonl, test.jsonl.gz.*; give a folder"
    ):
        items("test", data=tmp_path)
    with pytest.raises(UsageError, match="unknown split 'numbers'; expected one of 'train', 'test'"):
        items("numbers", data=SAMPLE)
    with pytest.raises(UsageError, match="shots is -1; give the number of worked examples"):
        items("test", data=SAMPLE, shots=-1)
    with pytest.raises(UsageError, match="start is -1"):
        items("test", data=SAMPLE, start=-1)
    with pytest.raises(UsageError, match="shots=12 needs 13 training problems, there are 12; ask for fewer"):
        items("train", data=SAMPLE, shots=12)
    shutil.copy(SAMPLE / "test.jsonl", tmp_path)
    with pytest.raises(UsageError, match="does not hold the training problems that shots=5 takes its examples from"):
        items("test", data=tmp_path / "test.jsonl")
    assert len(list(items("test", data=tmp_path / "test.jsonl", shots=0))) == 20


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test.jsonl", b'{"question": "q", "answer": "#### 1"}\n{"question', "cannot be read after 1 rows"),
        ("test.jsonl", b"\xff\xfe", "expected one JSON object a line"),
        ("test.jsonl", b'["q", "a"]\n', "row 0 has no text under question, answer"),
        (
            "test.jsonl",
            b'{"question": "q", "answer": 1}\n',
            "row 0 has no text under answer; expected question, answer",
        ),
        ("test.jsonl", b"\n", "has no rows"),
        ("test.jsonl.gz", b"not gzip", "cannot be read after 0 rows"),
        ("test.parquet", b"not parquet", "cannot be read as Parquet"),
        (
            "test.csv",
            b"question,answer",
            "of no known kind; give a file that ends in one of .jsonl, .jsonl.gz, .parquet",
        ),
    ],
)
def test_unusable_files_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        items("test", data=tmp_path / name, shots=0)


def test_tasks_from_files_are_found_by_name() -> None:
    assert not BENCHMARKS.keys() & TASKS.keys()
    for name, module in BENCHMARKS.items():
        assert task(name).__name__ == module
    with pytest.raises(UsageError, match=r"unknown task 'chess'; expected one of 'passkey', .*'gsm8k', 'humaneval'"):
        task("chess")


def test_presets_are_of_known_models_and_make_samplers() -> None:
    for preset in presets.PRESETS:
        assert preset.model in KNOWN
        assert preset.task in BENCHMARKS
        assert callable(task(preset.task).items)
        made = preset.sampler()
        assert (made.length, made.steps) == (preset.length, preset.steps)
        assert type(made).__name__ == ("DreamSampler" if KNOWN[preset.model].family == "dream" else "LLaDASampler")
    first, *others = presets.published("llada-8b-base", "gsm8k")
    assert (first.shots, first.length, first.steps, first.block, first.accuracy) == (5, 1024, 1024, 1024, 70.3)
    assert [other.length for other in others] == [512, 256, 256]
    dream = presets.published("dream-v0-instruct-7b", "humaneval")[0].sampler()
    assert (dream.length, dream.alg, dream.temperature, dream.top_p) == (768, "entropy", 0.1, 0.9)
    assert presets.published("llada-1.5", "humaneval")[0].sampler().confidence_eos_eot_inf


@pytest.mark.parametrize(
    "name", ["GSAI-ML/LLaDA-8B-Base", "some/folder/LLaDA-8B-Base", "llada-8b-base/", "./llada-8b-base"]
)
def test_a_model_is_known_by_its_hub_id_and_by_a_folder_of_its_name(name: str) -> None:
    assert presets.published(name, "gsm8k") == presets.published("llada-8b-base", "gsm8k")


def test_a_model_or_task_without_presets_is_refused() -> None:
    with pytest.raises(
        UsageError, match="unknown model with published settings 'llama'; expected one of 'llada-8b-base'"
    ):
        presets.published("llama", "gsm8k")
    with pytest.raises(
        UsageError, match="no settings of mmada-8b-mixcot are published for 'humaneval'; there are some for"
    ):
        presets.published("mmada-8b-mixcot", "humaneval")
