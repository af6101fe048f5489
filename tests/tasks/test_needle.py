"""Needles, long pass keys and LongBench: where things stand in a prompt, the published grids, what scores."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.tasks import longbench, needle, passkey_long
from sinklens.tasks.haystack import bury, encode, read_documents
from sinklens.tasks.passkey_filler import TRAINED


class Characters:
    """A tokenizer with a token for every character, and a bos."""

    bos_token_id, eos_token_id = 0, 1

    def __call__(self, text: str, *, add_special_tokens: bool, verbose: bool) -> dict[str, list[int]]:
        return {"input_ids": [0] * add_special_tokens + [ord(one) for one in text]}

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(chr(one) for one in ids if one > 1)


TOKENIZER = Characters()
HAY = encode(TOKENIZER, "One two. Three four. Five six. ")


@settings(max_examples=60, deadline=None)
@given(st.integers(40, 400), st.floats(0, 1), st.integers(0, 3))
def test_a_prompt_has_its_length_and_the_needle_behind_a_full_stop(length: int, depth: float, number: int) -> None:
    made = bury(TOKENIZER, hay=HAY, needle="<NEEDLE>", depth=depth, length=length, head="begin:", tail="?")
    text = TOKENIZER.decode(list(made.ids))
    assert len(made.ids) == length and made.ids[0] == 0
    assert text.startswith("begin:") and text.endswith("?") and text.count("<NEEDLE>") == 1
    start, stop = made.needle
    assert TOKENIZER.decode(list(made.ids[start:stop])) == "<NEEDLE>"
    before = text[len("begin:") : text.index("<NEEDLE>")]
    assert before == "" or before.endswith(".") or depth == 1
    room = length - 1 - len("begin:<NEEDLE>?")
    assert made.depth == len(before) / room
    assert depth * room - 12 < len(before) <= depth * room  # a sentence has 12 characters at most
    hay = (before + text[text.index("<NEEDLE>") + 8 : -1]).encode()
    assert list(hay) == (HAY * 20)[:room]


def test_the_ends_of_the_hay() -> None:
    def at(depth: float) -> str:
        made = bury(TOKENIZER, hay=HAY, needle="N", depth=depth, length=30)
        return TOKENIZER.decode(list(made.ids))

    assert at(0).startswith("NOne two.") and at(1).endswith("N") and at(0.5).startswith("One two.N Three")


def test_prompts_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="a prompt of 5 tokens is asked for, but 9 are needed"):
        bury(TOKENIZER, hay=HAY, needle="<NEEDLE>", depth=0, length=5)
    with pytest.raises(UsageError, match=r"depth is 1\.5; give a share"):
        bury(TOKENIZER, hay=HAY, needle="N", depth=1.5, length=50)
    with pytest.raises(UsageError, match="the haystack holds no token"):
        bury(TOKENIZER, hay=[], needle="N", depth=0, length=50)


def test_the_published_grid_of_the_needle() -> None:
    assert len(needle.PAPER_LENGTHS) == 13 and len(needle.PAPER_DEPTHS) == 10
    assert needle.PAPER_LENGTHS[:3] == (1000, 4256, 7513) and needle.PAPER_LENGTHS[-1] == 40077
    assert needle.PAPER_DEPTHS == (0, 11, 22, 33, 44, 56, 67, 78, 89, 100)
    around = 1 + len(needle.HEAD) + len(needle.TAIL)
    assert needle.paper_length(TOKENIZER, 1000) == 800 + around
    with pytest.raises(UsageError, match="the published grid begins at 1000"):
        needle.paper_length(TOKENIZER, 200)


def test_the_needle_and_its_score() -> None:
    made = needle.build(TOKENIZER, HAY, length=600, depth=0.5)
    text = TOKENIZER.decode(list(made.ids))
    assert text.startswith("This is a very long story book: <book> One two.") and text.endswith("Answer:")
    assert needle.NEEDLE in text and needle.ANSWER in needle.NEEDLE
    assert needle.score(needle.ANSWER) == needle.score(f" You could {needle.ANSWER.upper()} Yes.") == 1.0
    assert needle.score(needle.ANSWER.removesuffix(".")) == 10 / 11
    assert needle.score("") == needle.score("Nothing.") == 0.0
    assert needle.score("a a a sandwich") == 2 / 11


def test_other_needles_begin_elsewhere_in_the_text() -> None:
    made = [needle.build(TOKENIZER, HAY, length=500, depth=0, number=number).ids for number in (0, 1, 1, 2)]
    assert made[1] == made[2] and made[0] != made[1] != made[3]


def test_the_published_grid_of_the_pass_key() -> None:
    assert [passkey_long.paper_characters(step) for step in (1, 2, 3, 32)] == [3072, 7168, 10240, 119808]
    assert len(passkey_long.GRID) == 32 and passkey_long.SEEDS == 10
    with pytest.raises(UsageError, match="step 33 of the published grid"):
        passkey_long.paper_characters(33)
    text, key = passkey_long.paper_text(1, number=3)
    task, before, stated, after, question = text.split("\n")
    assert len(before) + len(after) == 3072 and 1 <= int(key) < 50_000
    assert stated == f"The pass key is {key}. Remember it. {key} is the pass key."
    assert question.endswith("The pass key is") and task.startswith("There is an important info")
    filler = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
    assert (filler * 40).startswith(before) and (filler * 40).startswith(after)
    assert passkey_long.paper_text(1, number=3) == (text, key) != passkey_long.paper_text(1, number=4)


@pytest.mark.parametrize("wording", ["own", "paper"])
def test_pass_keys_of_any_length(wording: str) -> None:
    for length in (400, 1000):
        made, key = passkey_long.build(TOKENIZER, length=length, number=7, wording=wording)
        text = TOKENIZER.decode(list(made.ids))
        assert len(made.ids) == length and text.endswith("What is the pass key? The pass key is")
        assert f"The pass key is {key}. Remember it." in text
        assert text.count(key) == (2 if wording == "paper" else 1)
    again, same = passkey_long.build(TOKENIZER, length=600, number=7, wording=wording)
    assert same == key  # whatever the length
    assert abs(again.depth - made.depth) < 0.15
    others = {passkey_long.build(TOKENIZER, length=400, number=n, wording=wording)[1] for n in range(20)}
    assert len(others) > 15
    with pytest.raises(UsageError, match="unknown wording 'mine'"):
        passkey_long.build(TOKENIZER, length=400, number=0, wording="mine")


def test_own_filler_is_that_of_the_task() -> None:
    made, key = passkey_long.build(TOKENIZER, length=900, number=0, depth=1.0)
    text = TOKENIZER.decode(list(made.ids)).partition(f" The pass key is {key}")[0]
    assert all(f"{sentence}." in TRAINED for sentence in text.strip().split(". ")[:-1])


def test_a_key_is_found_by_its_ids() -> None:
    answer = passkey_long.answer_ids(TOKENIZER, "123")
    assert TOKENIZER.decode(list(answer)) == " 123"
    assert passkey_long.found(encode(TOKENIZER, " 123. More"), answer)
    assert passkey_long.found(encode(TOKENIZER, " 1234"), answer)  # the published rule: the first ids alone
    assert not passkey_long.found(encode(TOKENIZER, " 12"), answer)
    assert not passkey_long.found(encode(TOKENIZER, "123"), answer)


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("The cat.", "a cat", 1.0),
        ("cat dog", "dog bird", 0.5),
        ("dog dog", "dog", 2 / 3),
        ("no", "yes", 0.0),
        ("", "yes", 0.0),
        ("the", "yes", 0.0),
    ],
)
def test_f1(text: str, answer: str, expected: float) -> None:
    assert longbench.f1(text, answer) == pytest.approx(expected)


def test_rouge_l_follows_the_order_of_words() -> None:
    assert longbench.rouge_l("police killed the gunman", "police kill the gunman") == 0.75
    assert longbench.rouge_l("the gunman kill police", "police kill the gunman") == 0.5
    assert longbench.rouge_l("", "x") == 0.0


WORDS = st.lists(st.sampled_from("abcde"), max_size=8)


@settings(max_examples=60, deadline=None)
@given(WORDS, WORDS)
def test_rouge_l_against_its_definition(left: list[str], right: list[str]) -> None:
    def longest(a: list[str], b: list[str]) -> int:
        if not a or not b:
            return 0
        if a[0] == b[0]:
            return 1 + longest(a[1:], b[1:])
        return max(longest(a[1:], b), longest(a, b[1:]))

    expected = 2 * longest(left, right) / (len(left) + len(right)) if left and right else 0.0
    assert longbench.rouge_l(" ".join(left), " ".join(right)) == pytest.approx(expected)


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A made-up folder in the published layout."""
    row = {"input": "Who {sat}?", "context": "A cat {sat}.", "answers": ["the cat", "Tom"], "length": 4, "dataset": "x"}
    (tmp_path / "data").mkdir()
    for name in longbench.SETS:
        (tmp_path / "data" / f"{name}.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row) + "\n")
    return tmp_path


def test_longbench_from_a_folder(published: Path) -> None:
    first, second = longbench.read_set(published, "hotpotqa")
    assert (first.number, second.number, first.answers) == (0, 1, ("the cat", "Tom"))
    own = longbench.read_wordings(published)
    assert not own.published and own.tokens["qmsum"] == 512
    assert longbench.ask(first, own).startswith("A cat {sat}.\n\nAnswer") and "Who {sat}?" in longbench.ask(first, own)
    (published / "config").mkdir()
    prompts = dict.fromkeys(longbench.SETS, "Read {context} and say {input}")
    (published / "config" / "dataset2prompt.json").write_text(json.dumps(prompts))
    (published / "config" / "dataset2maxlen.json").write_text(json.dumps(dict.fromkeys(longbench.SETS, 9)))
    theirs = longbench.read_wordings(published)
    assert theirs.published and theirs.tokens["qmsum"] == 9
    assert longbench.ask(first, theirs) == "Read A cat {sat}. and say Who {sat}?"
    assert longbench.score("hotpotqa", "It was Tom", first.answers) == 0.5
    assert longbench.score("qmsum", "the cat", first.answers) == 1.0


def test_longbench_that_cannot_be_read(published: Path) -> None:
    with pytest.raises(UsageError, match="longbench reads its problems from a file and was given none"):
        longbench.read_set(None, "qasper")
    (published / "data" / "qasper.jsonl").unlink()
    with pytest.raises(UsageError, match=r"does not hold qasper.jsonl, nor data/qasper.jsonl"):
        longbench.read_set(published, "qasper")
    with pytest.raises(UsageError, match=r"is .*hotpotqa\.jsonl, a file; give the folder"):
        longbench.read_set(published / "data" / "hotpotqa.jsonl", "hotpotqa")
    with pytest.raises(UsageError, match="unknown set 'lcc'"):
        longbench.read_set(published, "lcc")
    (published / "data" / "qmsum.jsonl").write_text('{"input": "a", "context": "b", "answers": "c"}\n')
    with pytest.raises(
        UsageError, match=r"qmsum.jsonl, line 1: expected a JSON object with the texts input and context"
    ):
        longbench.read_set(published, "qmsum")
    (published / "dataset2prompt.json").write_text(json.dumps(dict.fromkeys(longbench.SETS, "{input} {context}")))
    with pytest.raises(UsageError, match=r"expected a text with \{context\}, then \{input\}"):
        longbench.read_wordings(published)
    (published / "dataset2prompt.json").write_text("{}")
    with pytest.raises(UsageError, match="expected JSON with an entry for narrativeqa"):
        longbench.read_wordings(published)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 30), st.integers(1, 30))
def test_the_middle_is_cut(tokens: int, length: int) -> None:
    cut = longbench.cut_middle(range(tokens), length)
    assert len(cut) == min(tokens, length) and cut == sorted(cut)
    if tokens > length:
        assert cut == [*range(length // 2), *range(tokens - (length - length // 2), tokens)]


def test_documents(tmp_path: Path) -> None:
    shipped, digest = read_documents(None)
    assert len(shipped) == 64 and len(digest) == 64
    (tmp_path / "a.txt").write_text("one\ftwo\f \f")
    assert read_documents(tmp_path / "a.txt")[0] == ("one", "two")
    (tmp_path / "b.jsonl").write_text('{"text": "x"}\n{"text": "y"}\n')
    assert read_documents(tmp_path / "b.jsonl")[0] == ("x", "y")
    (tmp_path / "c.jsonl").write_text('{"words": "x"}\n')
    for name in ("c.jsonl", "none.txt"):
        with pytest.raises(UsageError, match=f"cannot read the text .*{name}"):
            read_documents(tmp_path / name)
    (tmp_path / "d.txt").write_text(" ")
    with pytest.raises(UsageError, match=r"d.txt is empty; give another"):
        read_documents(tmp_path / "d.txt")
