"""Rows of text and of problems: what is in them, what is open, and that seed and step decide them."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from sinklens.errors import UsageError
from sinklens.tasks import task
from sinklens.training.recipe import Data
from sinklens.training.rows import Reader, draws_of, read_tokens, split_rows, task_pools, task_rows, write_tokens
from training.small import TOKENIZER, make_data, small_recipe

EOS = 1


def reader_of(folder: Path, data: Data) -> Reader:
    return Reader(
        data,
        read_tokens(make_data(folder) / "text.npy.xz"),
        task_pools(data, folder, 1),
        bos_id=0,
        device=torch.device("cpu"),
    )


def test_a_row_is_bos_prompt_answer_and_eos() -> None:
    rows = task_rows("word_problems", "train", count=50, length=200, tokenizer=TOKENIZER)
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    items = list(islice(task("word_problems").items("train"), 50))
    assert len(rows.ids) == 50
    for ids, begin, end, item in zip(rows.ids, rows.answers, rows.ends, items, strict=True):
        assert ids[0] == 0
        assert tokenizer.decode(ids[1:begin].tolist()) == item.prompt
        assert tokenizer.decode(ids[begin:end].tolist()) == item.answer
        assert (ids[end:] == EOS).all()


def test_what_does_not_fit_is_left_out_and_workers_do_not_matter() -> None:
    long = task_rows("word_problems", "train", count=60, length=200, tokenizer=TOKENIZER)
    length = int(np.median(long.ends)) + 1
    short = task_rows("word_problems", "train", count=60, length=length, tokenizer=TOKENIZER)
    fits = long.ends < length
    assert 0 < len(short.ids) < 60
    np.testing.assert_array_equal(short.ids, long.ids[fits][:, :length])
    parallel = task_rows("word_problems", "train", count=60, length=length, tokenizer=TOKENIZER, workers=2)
    np.testing.assert_array_equal(parallel.ids, short.ids)


def test_open_positions(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, small_recipe("llada").data)
    ids, open_ = reader.text_rows(draws_of(0, 0))
    assert ids.shape == (4, 224)
    assert bool((ids[:, 0] == 0).all())
    assert bool((open_[:, 1:]).all())
    assert not open_[:, 0].any()
    answers, answer_open = reader.task_rows(draws_of(0, 0), whole=False)
    same, whole_open = reader.task_rows(draws_of(0, 0), whole=True)
    assert torch.equal(answers, same)
    for row, opened, counted in zip(answers, answer_open, whole_open, strict=True):
        first_eos = int((row == EOS).nonzero()[0])
        assert counted.nonzero().squeeze(1).tolist() == list(range(first_eos + 1))
        begin = int(opened.nonzero()[0])
        assert 1 < begin < first_eos
        assert bool(opened[begin:].all())


def test_seed_and_step_decide_the_rows(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, small_recipe("llada").data)
    first, again, next_step, other = (
        reader.text_rows(draws_of(seed, step))[0] for seed, step in ((0, 3), (0, 3), (0, 4), (1, 3))
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, next_step)
    assert not torch.equal(first, other)


def test_pools_are_made_once(tmp_path: Path) -> None:
    data = small_recipe("llama").data
    make_data(tmp_path)
    made = task_pools(data, tmp_path, 1)
    files = sorted((tmp_path / "pools").iterdir())
    times = [file.stat().st_mtime_ns for file in files]
    read = task_pools(data, tmp_path, 1)
    assert [file.stat().st_mtime_ns for file in files] == times
    assert made.keys() == read.keys() == data.tasks.keys()
    for name in made:
        np.testing.assert_array_equal(made[name].ids, read[name].ids)


def test_tokens_come_back_as_written_and_missing_text_is_named(tmp_path: Path) -> None:
    tokens = np.arange(5000, dtype=np.uint16)
    write_tokens(tmp_path / "text.npy.xz", tokens)
    np.testing.assert_array_equal(read_tokens(tmp_path / "text.npy.xz"), tokens)
    with pytest.raises(UsageError, match=r"expected the folder that `python -m sinklens.training.prepare"):
        read_tokens(tmp_path / "none.npy.xz")
    with pytest.raises(UsageError, match="the text has 10 tokens; expected more than a row of 224"):
        Reader(small_recipe("llama").data, tokens[:10], {}, bos_id=0, device=torch.device("cpu"))


def test_rows_are_split_by_share() -> None:
    assert split_rows(10, {"a": 0.65, "b": 0.35}) == {"a": 7, "b": 3}
    assert sum(split_rows(97, {"a": 1.0, "b": 1.0, "c": 1.0}).values()) == 97
