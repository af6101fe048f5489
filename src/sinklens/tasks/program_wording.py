"""From a chain of operations to the sentence that asks for it, and the name of the wording."""

from sinklens.tasks.draws import Draws
from sinklens.tasks.program_operation import Chain, Operation

OPENINGS = ("Return", "Compute", "Find", "Give", "Calculate")
JOINTS = {
    2: ("{}, then {}.", "{} and then {}.", "{}. Then {}."),
    3: ("{}, {}, then {}.", "{}, then {}, then {}.", "{}, {} and then {}."),
}
PRONOUNS = {"number": "it", "list": "them"}
RESERVED_SHARE = 0.4  # of the phrasings in "templates" beyond the one that must be there


def describe(chain: Chain, parameters: tuple[str, ...], draws: Draws, *, reserved: bool) -> tuple[str, str]:
    """A sentence for the chain and its template; `reserved`: with at least one phrasing kept out of training."""
    noun = draws.chance(0.5)
    sure = draws.between(0, len(chain) - 1) if reserved else None
    picks = []
    for place, (operation, _) in enumerate(chain):
        phrasings = operation.nouns if noun else operation.steps
        last = len(phrasings) - 1
        if place == sure or (reserved and draws.chance(RESERVED_SHARE)):
            picks.append(last)
        elif noun and place < len(chain) - 1:
            picks.append(draws.pick(operation.inner_nouns))
        else:
            picks.append(draws.between(0, last - 1))
    words = " and ".join(parameters)
    if noun:
        opening = 0 if chain[-1][0].gives == "truth" else draws.between(0, len(OPENINGS) - 1)
        sentence = f"{OPENINGS[opening]} {_nested(chain, picks, words)}."
        frame = f"noun{opening}"
    else:
        joint = draws.between(0, len(JOINTS[len(chain)]) - 1)
        sentence = _in_steps(chain, picks, words, JOINTS[len(chain)][joint])
        frame = f"step{joint}"
    return sentence, " ".join([frame, *(f"{op.name}.{pick}" for (op, _), pick in zip(chain, picks, strict=True))])


def _nested(chain: Chain, picks: list[int], words: str) -> str:
    for (operation, constant), pick in zip(chain, picks, strict=True):
        words = operation.nouns[pick].format(v=words, k=constant)
    return words


def _in_steps(chain: Chain, picks: list[int], words: str, joint: str) -> str:
    steps = []
    for (operation, constant), pick in zip(chain, picks, strict=True):
        steps.append(operation.steps[pick].format(v=words, k=constant))
        words = PRONOUNS.get(operation.gives, "")
    steps[0] = steps[0][0].upper() + steps[0][1:]
    return joint.format(*steps)


def draw_chain(operations: dict[str, tuple[Operation, ...]], takes: str, draws: Draws) -> list[Operation]:
    """Two or three operations, none twice, each taking what the one before gives."""
    length = 2 if draws.chance(0.55) else 3
    while True:
        kind = takes
        chain: list[Operation] = []
        while len(chain) < length and kind in operations:
            operation = draws.pick(operations[kind])
            if operation in chain:
                break
            chain.append(operation)
            kind = operation.gives
        # Three operations with a list as result would show and answer with too many tokens.
        if len(chain) == length and not (length == 3 and kind == "list"):
            return chain
