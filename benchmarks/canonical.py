"""GSM8K and HumanEval graded on their own solutions: `python benchmarks/canonical.py --data DIR [--harness]`.

DIR holds a folder gsm8k and a folder humaneval (see sinklens.tasks.gsm8k.HOW and sinklens.tasks.humaneval.HOW).

GSM8K: every solution, then the same with its number changed by one. HumanEval: every solution, every prompt alone, and
every solution with one operator or number changed; the last are judged once more with the tests beside the completion,
in one program, as is usual, and the verdicts compared. `--harness` compares prompts and grades of GSM8K with those of
lm-evaluation-harness, where it is installed.
"""

import argparse
import ast
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sinklens.tasks import gsm8k, humaneval
from sinklens.tasks.files import find_file, split_names
from sinklens.tasks.item import Item
from sinklens.tasks.sandbox import Program, how, run

HARNESS_SEED = 1234
SWAPS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Lt: ast.LtE,
    ast.Gt: ast.GtE,
    ast.Eq: ast.NotEq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def of_gsm8k(folder: Path) -> None:
    for split in gsm8k.SPLITS:
        start = time.perf_counter()
        items = list(gsm8k.items(split, data=folder))
        print(f"gsm8k {split:5} {len(items)} problems read in {time.perf_counter() - start:.2f} s")
        for name, texts in (("solutions", [item.answer for item in items]), ("one off", [one_off(i) for i in items])):
            start = time.perf_counter()
            grades = [gsm8k.grades(item, text) for item, text in zip(items, texts, strict=True)]
            seconds = time.perf_counter() - start
            shares = ", ".join(f"{rule} {sum(grade[rule] for grade in grades) / len(items):.4f}" for rule in grades[0])
            print(f"gsm8k {split:5} {name:9} {shares}; {seconds:.2f} s")


def one_off(item: Item) -> str:
    number = item.facts["answer"]
    return f"{item.answer.rpartition('####')[0]}#### {int(number) + 1}"


def of_humaneval(folder: Path) -> None:
    items = list(humaneval.items("test", data=folder))
    print(f"humaneval {len(items)} problems, sandbox: {how()}")
    for name, texts in (("solutions", [item.answer for item in items]), ("prompts alone", [""] * len(items))):
        start = time.perf_counter()
        right = humaneval.grade_all(items, texts)
        print(f"humaneval {name:13} pass@1 {sum(right) / len(items):.4f}; {time.perf_counter() - start:.1f} s")
    changed = [(item, text) for item in items for text in changes(item)]
    start = time.perf_counter()
    apart = humaneval.grade_all([item for item, _ in changed], [text for _, text in changed])
    seconds = time.perf_counter() - start
    outcomes = run([together(item, text) for item, text in changed], limits=humaneval.GRADING_LIMITS)
    beside = [outcome.values == (True,) for outcome in outcomes]
    differ = [item.template for (item, _), one, other in zip(changed, apart, beside, strict=True) if one != other]
    print(f"humaneval one change: {sum(apart)} of {len(changed)} programs pass; {seconds:.1f} s")
    print(f"humaneval one change: {sum(beside)} pass with the tests in the program, {len(differ)} differ {differ}")


def together(item: Item, text: str) -> Program:
    """The usual way: completion and tests in one program."""
    end = f"\ndef judge():\n    check({item.facts['entry_point']})\n    return True\n"
    source = f"{item.prompt}{humaneval.cut(text)}\n{item.facts['test']}\n{end}"
    return Program(source=source, entry="judge", calls=[[]])


def changes(item: Item, most: int = 4) -> Iterator[str]:
    """The solution with one change: an operator swapped, or a whole number one more."""
    tree = ast.parse(item.prompt + item.answer)
    lines = item.prompt.count("\n")
    places = [node for node in ast.walk(tree) if getattr(node, "lineno", 0) > lines and change(node, apply=False)]
    for place in random.Random(item.index).sample(range(len(places)), min(most, len(places))):
        again = ast.parse(item.prompt + item.answer)
        nodes = [node for node in ast.walk(again) if getattr(node, "lineno", 0) > lines and change(node, apply=False)]
        change(nodes[place], apply=True)
        functions = [node for node in again.body if isinstance(node, ast.FunctionDef)]
        function = next(node for node in functions if node.name == item.facts["entry_point"])
        yield "".join(f"    {line}\n" for node in function.body for line in ast.unparse(node).split("\n"))


def change(node: Any, *, apply: bool) -> bool:
    """Whether there is something to change in a node; with `apply` it is changed."""
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        if apply:
            node.op = SWAPS[type(node.op)]()
        return True
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        if apply:
            node.ops[0] = SWAPS[type(node.ops[0])]()
        return True
    if isinstance(node, ast.Constant) and type(node.value) is int:
        if apply:
            node.value += 1
        return True
    return False


def against_harness(folder: Path, texts: int) -> None:
    """Prompts, and grades of texts put together at random, beside those of lm-evaluation-harness."""
    import lm_eval
    import yaml
    from lm_eval import tasks
    from lm_eval.api.instance import Instance
    from lm_eval.api.task import ConfigurableTask

    config = yaml.safe_load((Path(tasks.__file__).parent / "gsm8k" / "gsm8k.yaml").read_text("utf-8"))
    files = {split: str(find_file(folder, split_names(split))) for split in gsm8k.SPLITS}
    kind = "parquet" if files["test"].endswith("parquet") else "json"
    config |= {"dataset_path": kind, "dataset_name": None, "dataset_kwargs": {"data_files": files}}
    theirs = ConfigurableTask(config=config)
    theirs.set_fewshot_seed(HARNESS_SEED)
    docs = list(theirs.test_docs())
    items = list(gsm8k.items("test", data=folder, seed=HARNESS_SEED))
    same = sum(theirs.fewshot_context(d, num_fewshot=gsm8k.SHOTS) == i.prompt for d, i in zip(docs, items, strict=True))
    print(f"lm-eval {lm_eval.__version__}: {same} of {len(items)} prompts equal")
    drawing, equal, right = random.Random(0), 0, 0
    for _ in range(texts):
        number = drawing.randrange(len(items))
        text = scrambled(items[number], drawing)
        until = re.split("|".join(map(re.escape, config["generation_kwargs"]["until"])), text)[0]
        verdicts = []
        for rule in theirs._filters:
            asked = Instance(request_type="generate_until", doc=docs[number], arguments=("", {}), idx=0)
            asked.resps = [until]
            rule.apply([asked])
            verdicts.append(
                bool(theirs.process_results(docs[number], [asked.filtered_resps[rule.name]])["exact_match"])
            )
        equal += verdicts == list(gsm8k.grades(items[number], text).values())
        right += any(verdicts)
    print(f"lm-eval {lm_eval.__version__}: {equal} of {texts} pairs of grades equal, {right} with one that is right")


def scrambled(item: Item, drawing: random.Random) -> str:
    number = item.facts["answer"]
    marks = ["#### ", "####", "$", ",", ".", "...", " ", "\n", "-", "Question:", "</s>", "<<2+2=4>>", "3/4", "18.00"]
    numbers = [number, f"#### {number}", f"${number}", f"{number}.", f"{number}.00", f"#### {int(number):,}"]
    return "".join(drawing.choice(marks + numbers) for _ in range(drawing.randrange(1, 9)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--harness", action="store_true")
    parser.add_argument("--texts", type=int, default=3000)
    chosen = parser.parse_args()
    of_gsm8k(chosen.data / "gsm8k")
    of_humaneval(chosen.data / "humaneval")
    if chosen.harness:
        against_harness(chosen.data / "gsm8k", chosen.texts)


if __name__ == "__main__":
    main()
