"""Word problems: the solutions are true, the splits are what they say, the English holds together."""

import re
import subprocess
import sys
from collections import Counter
from itertools import islice
from string import Formatter
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.tasks import word_lexicon as lexicon
from sinklens.tasks.item import SPLITS, Item
from sinklens.tasks.word_problems import grade, items, solution_is_right
from sinklens.tasks.word_wordings import RESERVED, TRAINED

MANY = 1200
EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
TIMES = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}


def take(split: str, count: int, **options: int) -> list[Item]:
    return list(islice(items(split, **options), count))


@pytest.fixture(scope="module")
def samples() -> dict[str, list[Item]]:
    return {split: take(split, 24 if split == "test" else MANY) for split in SPLITS}


def numbers_in(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"\d+", text)]


places = st.tuples(st.sampled_from(SPLITS), st.integers(-3, 10**6), st.integers(0, 10**9))


def at(place: tuple[str, int, int]) -> Item:
    split, seed, start = place
    return take(split, 1, seed=seed, start=start)[0]


@settings(max_examples=80, deadline=None)
@given(places)
def test_the_worked_solution_is_true_and_leads_from_the_story_to_the_answer(place: tuple[str, int, int]) -> None:
    item = at(place)
    first, *lines, last = item.answer.split("\n")
    assert first == ""
    assert item.facts["steps"] == len(lines) in (2, 3, 4)
    stated = Counter(numbers_in(item.prompt))
    results: list[int] = []
    for line, fact in zip(lines, item.facts["equations"], strict=True):
        found = EQUATION.fullmatch(line)
        assert found is not None
        left, sign, right, result = int(found[1]), found[2], int(found[3]), int(found[4])
        assert (left, sign, right, result) == fact
        assert {"+": left + right, "-": left - right, "*": left * right, "/": left / right}[sign] == result
        assert 1 <= result <= 200
        for operand in (left, right):
            assert operand in results or stated[operand] or TIMES[operand] in item.prompt
        results.append(result)
    for number, result in enumerate(results[:-1]):  # nothing is computed in vain
        assert any(result in numbers_in(line)[:2] for line in lines[number + 1 :])
    assert last == f"#### {results[-1]}" == f"#### {item.facts['answer']}"


WORDED = {wording.name: wording.text for table in (TRAINED, RESERVED) for part in table.values() for wording in part}


NUMBER = {"n": "[0-9]+", "k": "[0-9]+", "r": "[0-9]+ more|[0-9]+ fewer|[a-z ]+ as many"}


def pattern_of(text: str, place: int) -> str:
    """A wording with its numbers as groups and anything in words for its other fields."""
    pattern = ""
    for literal, field, _, _ in Formatter().parse(text):
        pattern += re.escape(literal)
        if field in NUMBER:
            pattern += f"(?P<{field}{place}>{NUMBER[field]})"
        elif field is not None:
            pattern += "[A-Za-z' ]*"
    return pattern


def read_back(item: Item) -> list[tuple[str, dict[str, str]]]:
    """What is told, in order, with its numbers: found by laying the wordings over the question."""
    names = item.template.split()
    pattern = " ".join(pattern_of(WORDED[name], place) for place, name in enumerate(names))
    found = re.fullmatch(pattern, item.prompt.removeprefix("Question: ").removesuffix("\nAnswer:"))
    assert found is not None, (item.prompt, item.template)
    numbers: list[dict[str, str]] = [{} for _ in names]
    for group, value in found.groupdict().items():
        numbers[int(group[1:])][group[0]] = value
    return [(name.split(".")[0], part) for name, part in zip(names, numbers, strict=True)]


def related(amount: int, relation: str) -> int:
    first, _, rest = relation.partition(" ")
    if first.isdigit():
        return amount + int(first) if rest == "more" else amount - int(first)
    return amount * {"twice": 2, "three": 3, "four": 4, "five": 5}[first]


def solve(item: Item) -> int:
    """Read the question as a person would, without a look at the solution."""
    amount = other = 0
    for key, numbers in read_back(item):
        n, k = int(numbers.get("n", 0)), int(numbers.get("k", 0))
        match key:
            case "has" | "money" | "crowd":
                amount = n
            case "has_groups" | "earn" | "crowd_groups":
                amount = k * n
            case "has_two":
                amount = n + k
            case "compare":
                amount, other = related(amount, numbers["r"]), amount
            case "next":
                amount = related(amount, numbers["r"])
            case "gain" | "get_money" | "come":
                amount += n
            case "lose" | "go" | "spend":
                amount -= n
            case "gain_groups" | "come_groups":
                amount += k * n
            case "lose_groups" | "buy":
                amount -= k * n
            case "sell":
                amount *= n
            case "ask_share" | "ask_rows":
                assert amount % k == 0
                amount //= k
            case "ask_both":
                amount += other
            case "aside" | "crowd_aside" | "ask_now" | "ask_other" | "ask_sold" | "ask_left" | "ask_crowd" | "ask_next":
                pass
            case _:
                raise AssertionError(key)
        assert amount > 0
    return amount


def test_the_question_read_back_from_its_words_gives_the_answer(samples: dict[str, list[Item]]) -> None:
    for item in (item for part in samples.values() for item in part):
        assert solve(item) == item.facts["answer"], item.prompt


@settings(max_examples=40, deadline=None)
@given(places, st.integers(0, 400))
def test_the_answer_grades_true_and_any_other_number_false(place: tuple[str, int, int], number: int) -> None:
    item = at(place)
    assert grade(item, item.answer)
    assert solution_is_right(item, item.answer)
    assert grade(item, f"\n#### {number}") == (number == item.facts["answer"])
    assert not grade(item, "")


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(SPLITS), st.integers(0, 1000), st.integers(0, 12))
def test_any_item_can_be_drawn_alone(split: str, seed: int, index: int) -> None:
    whole = take(split, index + 1, seed=seed)
    assert whole[index] == take(split, 1, seed=seed, start=index)[0]
    assert [item.index for item in whole] == list(range(index + 1))


def test_seeds_and_splits_give_other_problems() -> None:
    assert take("train", 5) == take("train", 5)
    assert not {item.prompt for item in take("train", 50)} & {item.prompt for item in take("train", 50, seed=1)}


KNOWN = {
    "train": (
        "Question: Will keeps 20 marbles in a basket. "
        "At home Hannah has 3 fewer marbles than Will. "
        "So how many marbles do the two have together?\nAnswer:",
        "\n20 - 3 = 17\n20 + 17 = 37\n#### 37",
    ),
    "test": (
        "Question: In the morning Emma has 7 lemons. "
        "Each of 5 friends gives her 7 lemons. "
        "Karl owns 37 fewer lemons than Emma has now. "
        "How many lemons do they have together?\nAnswer:",
        "\n5 * 7 = 35\n7 + 35 = 42\n42 - 37 = 5\n42 + 5 = 47\n#### 47",
    ),
    "templates": (
        "Question: Leo starts the day with 16 dollars. "
        "Then Leo pays for a pizza that costs 3 dollars. "
        "Each block costs 2 dollars, and he buys 2 blocks. "
        "For his help he gets 13 more dollars. "
        "His house has the number 7. "
        "How many dollars does Leo have after that?\nAnswer:",
        "\n16 - 3 = 13\n2 * 2 = 4\n13 - 4 = 9\n9 + 13 = 22\n#### 22",
    ),
    "numbers": (
        "Question: At first Alice has 25 cups. "
        "At home David has 9 fewer cups than Alice. "
        "The walk home takes 12 minutes. "
        "He sells the cups for 6 dollars each. "
        "How many dollars does David get in all?\nAnswer:",
        "\n25 - 9 = 16\n16 * 6 = 96\n#### 96",
    ),
}


@pytest.mark.parametrize("split", SPLITS)
def test_the_text_of_an_item_stays_what_it_is(split: str) -> None:
    """Models are trained on these texts: a change of wording, order or draws makes another benchmark."""
    item = take(split, 1, start=7)[0]
    assert (item.prompt, item.answer) == KNOWN[split]


def test_train_and_test_are_told_apart_by_the_checksum_of_the_prompt(samples: dict[str, list[Item]]) -> None:
    assert all(crc32(item.prompt.encode()) % 50 for item in samples["train"])
    assert not any(crc32(item.prompt.encode()) % 50 for item in samples["test"])


def test_no_problem_is_in_two_splits(samples: dict[str, list[Item]]) -> None:
    prompts = [{item.prompt for item in part} for part in samples.values()]
    assert len(set().union(*prompts)) == sum(map(len, prompts))
    assert len(prompts[0]) == MANY  # nor twice in one


def test_only_the_split_templates_uses_reserved_wordings(samples: dict[str, list[Item]]) -> None:
    for split, part in samples.items():
        assert {".reserved." in item.template for item in part} == {split == "templates"}


def test_only_the_split_numbers_states_21_to_25(samples: dict[str, list[Item]]) -> None:
    held_out = set(range(21, 26))
    usual = {*range(2, 21), *range(26, 51)}
    for split, part in samples.items():
        for item in part:
            stated = set(numbers_in(item.prompt))
            assert stated <= usual | held_out
            assert set(item.facts["given"]) - stated <= set(TIMES)  # those said in words
            assert bool(set(item.facts["given"]) & held_out) == bool(stated & held_out) == (split == "numbers")


def test_training_comes_across_21_to_25_as_results(samples: dict[str, list[Item]]) -> None:
    assert any(e.result in range(21, 26) for item in samples["train"] for e in item.facts["equations"])


def test_shares_of_steps_asides_operations_and_large_results(samples: dict[str, list[Item]]) -> None:
    for split in ("train", "templates", "numbers"):
        part = samples[split]
        steps = Counter(item.facts["steps"] for item in part)
        assert [steps[n] / MANY for n in (2, 3, 4)] == pytest.approx([0.45, 0.35, 0.2], abs=0.04)
        assert sum(bool(item.facts["asides"]) for item in part) / MANY == pytest.approx(0.25, abs=0.05)
        equations = [e for item in part for e in item.facts["equations"]]
        signs = Counter(e.operator for e in equations)
        assert min(signs[sign] for sign in "+-*/") > 0.04 * len(equations)
        assert sum(e.result > 100 for e in equations) < 0.2 * len(equations)


def test_an_aside_states_a_number_that_the_solution_does_not_need(samples: dict[str, list[Item]]) -> None:
    for item in samples["train"]:
        stated = Counter(numbers_in(item.prompt))
        said = Counter(item.facts["asides"]) + Counter(item.facts["given"])
        assert not stated - said
        assert set(said - stated) <= set(TIMES)
        assert ("aside." in item.template) == bool(item.facts["asides"])


def test_lengths_stay_within_the_budget(samples: dict[str, list[Item]]) -> None:
    """Words, digits and marks count one; a small model's tokenizer does about the same."""
    pieces = re.compile(r"\d|[A-Za-z]+|####|[^\w\s]|\n")
    for item in (item for part in samples.values() for item in part):
        assert len(pieces.findall(item.prompt + item.answer)) <= 110
        assert len(re.findall(r"\d| ?[-+*/=]|####|\n| ", item.answer)) <= 64
        assert len(item.prompt.split()) <= 75


def test_every_wording_comes_up(samples: dict[str, list[Item]]) -> None:
    used = {name for part in samples.values() for item in part for name in item.template.split()}
    named = [wording.name for table in (TRAINED, RESERVED) for wordings in table.values() for wording in wordings]
    assert used == set(named)
    assert len(named) == len(set(named))


@pytest.mark.parametrize("key", TRAINED)
def test_each_thing_is_said_in_six_ways_and_more_in_reserve(key: str) -> None:
    trained, reserved = [w.text for w in TRAINED[key]], [w.text for w in RESERVED[key]]
    assert len(set(trained)) == len(trained) >= 6
    assert 0.1 < len(reserved) / (len(trained) + len(reserved)) < 0.25
    assert not set(trained) & set(reserved)
    told = {
        tuple(sorted(name for _, name, _, _ in Formatter().parse(text) if name in ("n", "k", "r")))
        for text in trained + reserved
    }
    assert len(told) == 1  # however it is said, the same numbers are


def test_reserved_wordings_are_made_of_words_that_training_uses(samples: dict[str, list[Item]]) -> None:
    def words(text: str) -> set[str]:
        return set(re.findall(r"[a-z']+", re.sub(r"\{\w+\}", " ", text).lower()))

    known = set().union(*(words(w.text) for wordings in TRAINED.values() for w in wordings))
    for wording in (w for wordings in RESERVED.values() for w in wordings):
        assert words(wording.text) <= known, wording


def test_the_lexicon_is_varied_and_regular() -> None:
    names = [*lexicon.GIRLS, *lexicon.BOYS]
    assert len(names) == len(set(names)) >= 40
    assert not any(name.endswith("s") for name in names)  # "James's" is not among the forms
    assert len(set(lexicon.OBJECTS)) == len(lexicon.OBJECTS) >= 50
    after_a = [*lexicon.THINGS, *(one for one, _ in lexicon.CONTAINERS)]
    assert not any(word[0] in "aeiou" for word in after_a)


def test_the_english_holds_together(samples: dict[str, list[Item]]) -> None:
    slips = re.compile(r"\ba [aeiou0-9]|\ban [^aeioh]|  |[{}]| [.,?]|\b[01] |\b(\w+) \1\b|'s's|\bequal \w+ equal")
    for item in (item for part in samples.values() for item in part):
        question = item.prompt.removeprefix("Question: ").removesuffix("\nAnswer:")
        assert len(question) + len("Question: \nAnswer:") == len(item.prompt)
        assert not slips.search(question), question
        assert question.endswith("?") and question.count("?") == 1
        assert all(sentence[0].isupper() for sentence in re.split(r"(?<=[.?]) ", question)), question
        assert "\n" not in question


def test_pronouns_and_relatives_fit_the_only_person(samples: dict[str, list[Item]]) -> None:
    """Where one person is named, every "he" is a boy and every "she" a girl."""
    seen = Counter[str]()
    for item in samples["train"]:
        named = set(re.findall(r"[A-Z][a-z]+", item.prompt)) & {*lexicon.GIRLS, *lexicon.BOYS}
        if len(named) != 1:
            continue
        girl = named.pop() in lexicon.GIRLS
        pronouns = set(re.findall(r"\b(?:he|him|his|she|her)\b", item.prompt.lower()))
        assert not pronouns & ({"he", "him", "his"} if girl else {"she", "her"}), item.prompt
        seen.update(pronouns)
    assert set(seen) == {"he", "him", "his", "she", "her"}


def test_after_a_comparison_the_story_is_about_the_second_person(samples: dict[str, list[Item]]) -> None:
    shown = 0
    for item in samples["train"]:
        keys = [name.split(".")[0] for name in item.template.split()]
        if keys[:2] != ["has", "compare"] or keys[2] not in ("gain", "lose"):
            continue
        shown += 1
        sentences = item.prompt.removeprefix("Question: ").split(". ")
        people = re.findall(r"[A-Z][a-z]+", sentences[1])
        second = next(name for name in people if name in {*lexicon.GIRLS, *lexicon.BOYS})
        wrong = {"he", "him", "his"} if second in lexicon.GIRLS else {"she", "her"}
        assert not wrong & set(re.findall(r"\w+", sentences[2].lower())), item.prompt
    assert shown > 30


ITEM = Item(task="word_problems", split="test", index=0, template="", prompt="", answer="", facts={"answer": 34})


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("#### 34", True),
        ("\n12 + 5 = 17\n17 * 2 = 34\n#### 34", True),
        ("\n1 + 1 = 3\n#### 34\n#### 35", True),  # what follows the first answer is not read
        ("#### 35\n#### 34", False),
        ("####34", True),
        ("####   $ 34.", True),
        ("#### $34", True),
        ("#### 34.\n", True),
        ("#### 34 apples", True),
        ("#### 34.0", True),
        ("#### 34.5", False),
        ("#### 34.05", False),
        ("#### 340", False),
        ("#### 3", False),
        ("#### 3,4", False),
        ("#### 3 4", False),
        ("#### -34", False),
        ("####\n34", False),
        ("#### x\n34", False),
        ("34", False),
        ("#### ", False),
        ("#### " + "9" * 5000, False),
    ],
)
def test_grade(text: str, right: bool) -> None:
    assert grade(ITEM, text) is right


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("\n12 + 5 = 17\n17 * 2 = 34\n#### 34", True),
        ("12+5=17\n68 / 2 = 34\n#### 34\n1 + 1 = 3", True),
        ("\n12 + 5 = 18\n17 * 2 = 34\n#### 34", False),
        ("\n17 * 2 = 34\n12 + 5 = 17\n#### 34", False),  # the last line gives something else
        ("\n17 * 2 = 34\n#### 35", False),
        ("\n34 / 0 = 34\n#### 34", False),
        ("\n69 / 2 = 34\n#### 34", False),
        ("\n36 - 2 = 34\n#### 34", True),
        ("\nso it is\n36 - 2 = 34\n#### 34", False),
        ("#### 34", False),
    ],
)
def test_solution_is_right(text: str, right: bool) -> None:
    assert solution_is_right(ITEM, text) is right


def test_arguments_that_cannot_be_meant() -> None:
    with pytest.raises(UsageError, match="unknown split 'dev'; expected one of 'train', 'test', 'templates', 'num"):
        items("dev")
    with pytest.raises(UsageError, match="start is -1; give the number of the first item, from 0 on"):
        items("train", start=-1)
    with pytest.raises(UsageError, match="seed is 'a'; give a whole number"):
        items("train", seed="a")


def test_problems_are_made_without_numpy_or_torch() -> None:
    code = (
        "import sys; from sinklens.tasks import word_problems, passkey\n"
        "next(word_problems.items('test')); next(passkey.items('test'))\n"
        "assert not {'numpy', 'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
