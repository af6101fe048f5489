"""Plots for `word_problems`: an opening, changes, and an ending that asks, put together from blocks.

A block says one or two sentences, computes 0 to 2 results, and leaves the amount that the next block goes on from. A
shape is a row of blocks; its steps are the results it computes. What cannot be told with the numbers drawn (a loss
larger than what is there, a number that nothing divides) is given up and drawn again.
"""

from collections.abc import Callable, Mapping
from itertools import product
from typing import NamedTuple

from sinklens.tasks import word_lexicon as lexicon
from sinklens.tasks.draws import Draws
from sinklens.tasks.word_stories import MOST, Story, UnfitError

_TIMES = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}
_DIVISORS = tuple(tuple(k for k in range(2, 9) if n % k == 0 and n > k) for n in range(MOST + 1))
_ASIDE_SHARE = 0.25  # of the stories state a number that is of no use
_TRIES = 8  # a shape is given so many draws of its numbers before another takes its place


def _open(story: Story, key: str) -> None:
    story.amount = story.number(4, 50)
    story.say(key, n=story.amount)


def _open_groups(story: Story, key: str) -> None:
    count = story.factor(2, 6)
    each = story.number(2, 100 // count)
    story.say(key, k=count, n=each)
    story.amount = story.step(count, "*", each)


def _open_two(story: Story, key: str) -> None:
    first, second = story.number(2, 50), story.number(2, 50)
    story.say(key, n=first, k=second)
    story.amount = story.step(first, "+", second)


def _relate(story: Story, key: str) -> int:
    """Say that something is twice, or some more, or some fewer than the amount; how much it is."""
    now = " has now" if story.changed else ""
    kind = story.draws.between(0, 2)
    if kind == 0:
        factor = story.factor(2, 5)
        story.say(key, r=f"{_TIMES[factor]} as many", as_="as", now=now)
        return story.step(story.amount, "*", factor)
    number = story.number(2, story.amount - 2 if kind == 2 else 50)
    story.say(key, r=f"{number} {'more' if kind == 1 else 'fewer'}", as_="than", now=now)
    return story.step(story.amount, "+" if kind == 1 else "-", number)


def _open_compared(story: Story, key: str) -> None:
    """Two people; the story goes on with the second."""
    _open(story, "has")
    second = _relate(story, key)
    story.other_amount, story.amount = story.amount, second
    story.swap_people()


def _grow(story: Story, key: str) -> None:
    number = story.number(2, 50)
    story.say(key, n=number)
    story.amount = story.step(story.amount, "+", number)


def _shrink(story: Story, key: str) -> None:
    number = story.number(2, story.amount - 2)
    story.say(key, n=number, thing=story.draws.pick(lexicon.THINGS))
    story.amount = story.step(story.amount, "-", number)


def _grow_by_groups(story: Story, key: str) -> None:
    count = story.factor(2, 6)
    each = story.number(2, 100 // count)
    story.say(key, k=count, n=each)
    story.amount = story.step(story.amount, "+", story.step(count, "*", each))


def _shrink_by_groups(story: Story, key: str) -> None:
    count = story.factor(2, 6)
    each = story.number(2, (story.amount - 2) // count)
    story.say(key, k=count, n=each)
    story.amount = story.step(story.amount, "-", story.step(count, "*", each))


def _buy(story: Story, key: str) -> None:
    _shrink_by_groups(story, key)
    one, many = story.draws.pick(lexicon.OBJECTS)
    story.told[-1][1].update(one=one, o=many)


def _ask(story: Story, key: str) -> None:
    story.say(key)


def _ask_share(story: Story, key: str) -> None:
    if not _DIVISORS[story.amount]:
        raise UnfitError
    count = story.draws.pick(_DIVISORS[story.amount])
    story.given.append(count)
    story.amount = story.step(story.amount, "/", count)
    story.say(key, k=count)


def _ask_other(story: Story, key: str) -> None:
    story.amount = _relate(story, "compare")
    story.say(key)


def _ask_with_other(story: Story, key: str) -> None:
    other = _relate(story, "compare")
    story.amount = story.step(story.amount, "+", other)
    story.say(key)


def _ask_both(story: Story, key: str) -> None:
    story.amount = story.step(story.other_amount, "+", story.amount)
    story.say(key)


def _sell(story: Story) -> None:
    price = story.factor(2, min(9, MOST // story.amount))
    story.say("sell", n=price)
    story.amount = story.step(story.amount, "*", price)


def _ask_sold(story: Story, key: str) -> None:
    _sell(story)
    story.say(key)


def _ask_left_of_sale(story: Story, key: str) -> None:
    _sell(story)
    _shrink(story, "spend")
    story.say(key)


def _ask_next(story: Story, key: str) -> None:
    story.amount = _relate(story, "next")
    story.say(key)


class Block(NamedTuple):
    """A part of a plot, named by what it says last."""

    steps: int
    tell: Callable[[Story], None]
    name: str


def _block(steps: int, tell: Callable[[Story, str], None], key: str) -> Block:
    return Block(steps, lambda story: tell(story, key), key)


class World(NamedTuple):
    """Blocks that go together."""

    parts: int  # of twenty stories
    openings: tuple[Block, ...]
    changes: tuple[Block, ...]
    endings: tuple[Block, ...]
    aside: str  # the key of its sentences that are of no use


_ASK_OTHER = _block(1, _ask_other, "ask_other")
_ASK_WITH_OTHER = _block(2, _ask_with_other, "ask_both")
_ASK_BOTH = _block(1, _ask_both, "ask_both")
_ASK_NOW = _block(0, _ask, "ask_now")
_ASK_LEFT = _block(0, _ask, "ask_left")
_COMPARED = _block(1, _open_compared, "compare")
_LOSSES = ("spend", "buy")
WORLDS: Mapping[str, World] = {
    "things": World(
        11,
        (_block(0, _open, "has"), _block(1, _open_groups, "has_groups"), _block(1, _open_two, "has_two"), _COMPARED),
        (
            _block(1, _grow, "gain"), _block(1, _shrink, "lose"),
            _block(2, _grow_by_groups, "gain_groups"), _block(2, _shrink_by_groups, "lose_groups"),
        ),
        (
            _ASK_NOW, _block(1, _ask_share, "ask_share"), _block(1, _ask_sold, "ask_sold"),
            _block(2, _ask_left_of_sale, "ask_left"), _ASK_OTHER, _ASK_WITH_OTHER, _ASK_BOTH,
        ),
        "aside",
    ),
    "money": World(
        5,
        (_block(0, _open, "money"), _block(1, _open_groups, "earn")),
        (_block(1, _grow, "get_money"), _block(1, _shrink, "spend"), _block(2, _buy, "buy")),
        (_ASK_NOW, _ASK_LEFT, _ASK_OTHER, _ASK_WITH_OTHER),
        "aside",
    ),
    "crowds": World(
        4,
        (_block(0, _open, "crowd"), _block(1, _open_groups, "crowd_groups")),
        (_block(1, _grow, "come"), _block(1, _shrink, "go"), _block(2, _grow_by_groups, "come_groups")),
        (_block(0, _ask, "ask_crowd"), _block(1, _ask_share, "ask_rows"), _block(1, _ask_next, "ask_next")),
        "crowd_aside",
    ),
}  # fmt: skip
Shape = tuple[Block, ...]


def _makes_sense(opening: Block, changes: Shape, ending: Block) -> bool:
    if opening is _COMPARED:
        return ending is not _ASK_OTHER and ending is not _ASK_WITH_OTHER
    if ending is _ASK_LEFT:
        return any(change.name in _LOSSES for change in changes)
    return ending is not _ASK_BOTH


def _shapes(world: World, steps: int) -> tuple[tuple[Shape, ...], ...]:
    """Shapes of so many steps, in groups of the same opening and ending: a group is drawn first, so that endings
    which leave room for many changes do not crowd out the rest."""
    rows = [row for count in range(4) for row in product(world.changes, repeat=count)]
    groups = []
    for opening, ending in product(world.openings, world.endings):
        left = steps - opening.steps - ending.steps
        fitting = (row for row in rows if sum(block.steps for block in row) == left)
        groups.append(tuple((opening, *row, ending) for row in fitting if _makes_sense(opening, row, ending)))
    return tuple(group for group in groups if group)


_SHAPES = {(name, steps): _shapes(world, steps) for name, world in WORLDS.items() for steps in (2, 3, 4)}
_WORLDS = tuple(name for name, world in WORLDS.items() for _ in range(world.parts))


def tell(draws: Draws, split: str, *, steps: int) -> tuple[Story, str]:
    """A story of so many steps and the name of its world."""
    while True:
        name = draws.pick(_WORLDS)
        shape = draws.pick(draws.pick(_SHAPES[name, steps]))
        for _ in range(_TRIES):
            try:
                return _tell(Story(draws, split), shape, WORLDS[name].aside), name
            except UnfitError:
                continue


def _tell(story: Story, shape: Shape, aside: str) -> Story:
    draws = story.draws
    aside_after = draws.between(0, len(shape) - 2) if draws.chance(_ASIDE_SHARE) else -1
    for number, block in enumerate(shape):
        story.changed = number > 1
        block.tell(story)
        if number == aside_after:
            story.digress(aside)
    return story
