"""How the stories of `word_problems` say each thing, several ways each; `word_questions` has how they ask.

A key is what is said; its first list is used in training, its second is kept for the split "templates" and made of
words that training uses too. Where a number tells how many there are of something, `k` counts groups and `n` what is
in each. Fields:

    A B        the hero and the other person         S s m h H  the hero as subject, object, possessor
    rel        a relative of the hero                o one      the objects, many and one
    n k        the numbers                           c cs       a container, several
    r as_ now  "twice as many" "as" " has now"       thing      something to buy
    the        "the", or "Mia's" where another person has some too
    at come go where a crowd is, how it grows, how it shrinks
"""

from typing import NamedTuple

from sinklens.tasks.word_questions import ASIDES, QUESTIONS


class Wording(NamedTuple):
    """One way to say something, and the name of that way."""

    name: str
    text: str


_HAS = {
    "has": (
        [
            "{A} has {n} {o}.",
            "{A} owns {n} {o}.",
            "{A} starts with {n} {o}.",
            "{A} keeps {n} {o} in a {c}.",
            "At first {A} has {n} {o}.",
            "In the morning {A} has {n} {o}.",
            "{A} counts {n} {o} in {h} {c}.",
            "There are {n} {o} in {A}'s {c}.",
        ],
        ["{A} has a {c} with {n} {o}.", "In the morning there are {n} {o} in {A}'s {c}."],
    ),
    "has_groups": (
        [
            "{A} has {k} {cs} with {n} {o} each.",
            "{A} buys {k} {cs} of {n} {o} each.",
            "{A} fills {k} {cs} with {n} {o} each.",
            "{A} has {k} {cs}. Each {c} holds {n} {o}.",
            "{A} packs {n} {o} into each of {k} {cs}.",
            "There are {n} {o} in each of {A}'s {k} {cs}.",
        ],
        ["Each of {A}'s {k} {cs} holds {n} {o}."],
    ),
    "has_two": (
        [
            "{A} has {n} big {o} and {k} small {o}.",
            "{A} has {n} {o} at home and {k} {o} at school.",
            "{A} finds {n} {o} on Monday and {k} on Tuesday.",
            "{A} buys {n} {o} in the morning and {k} in the evening.",
            "{A} keeps {n} {o} in one {c} and {k} in another.",
            "{A} gets {n} {o} from a friend and {k} from {h} {rel}.",
        ],
        ["On Monday {A} gets {n} {o}, and on Tuesday {k}."],
    ),
    # One frame for all three comparisons: "twice as many ... as", "5 more ... than", "5 fewer ... than".
    "compare": (
        [
            "{B} has {r} {o} {as_} {A}{now}.",
            "{B} owns {r} {o} {as_} {A}{now}.",
            "{B} counts {r} {o} {as_} {A}{now}.",
            "{B} keeps {r} {o} {as_} {A}{now}.",
            "{B} brings {r} {o} {as_} {A}{now}.",
            "A friend, {B}, has {r} {o} {as_} {A}{now}.",
            "At home {B} has {r} {o} {as_} {A}{now}.",
        ],
        ["At home {B} keeps {r} {o} {as_} {A}{now}.", "A friend, {B}, brings {r} {o} {as_} {A}{now}."],
    ),
}
_CHANGES = {
    "gain": (
        [
            "{S} finds {n} more {o}.",
            "{S} buys {n} more {o}.",
            "Then {s} gets {n} more {o}.",
            "A friend gives {m} {n} more {o}.",
            "{H} {rel} gives {m} {n} more {o}.",
            "{S} wins {n} {o} in a game.",
            "Later {s} picks up {n} more {o}.",
            "Then {s} collects {n} {o} on the way home.",
        ],
        ["Then a friend finds {n} more {o} for {m}.", "On the way home {s} gets {n} more {o}."],
    ),
    "lose": (
        [
            "{S} gives {n} {o} to a friend.",
            "{S} loses {n} {o}.",
            "{S} sells {n} of the {o}.",
            "Then {s} gives away {n} {o}.",
            "{S} gives {h} {rel} {n} of the {o}.",
            "Later {s} sells {n} {o} to a neighbor.",
            "Then {n} of {the} {o} get lost.",
            "{S} leaves {n} {o} at school.",
        ],
        ["On the way home {n} of {the} {o} get lost.", "Then {s} gives {n} of the {o} to a neighbor."],
    ),
    "gain_groups": (
        [
            "{S} buys {k} {cs} of {n} {o} each.",
            "Then {s} gets {k} more {cs} with {n} {o} each.",
            "Then {k} friends give {m} {n} {o} each.",
            "Each of {k} friends gives {m} {n} {o}.",
            "{S} finds {n} {o} a day for {k} days.",
            "Then {s} wins {n} {o} in each of {k} games.",
        ],
        ["For {k} days {s} gets {n} more {o} a day."],
    ),
    "lose_groups": (
        [
            "{S} gives {n} {o} to each of {k} friends.",
            "{S} gives {k} friends {n} {o} each.",
            "{S} loses {n} {o} a day for {k} days.",
            "Each of {k} friends gets {n} {o} from {m}.",
            "{S} sells {k} {cs} of {n} {o} each.",
            "Then {s} loses {n} {o} in each of {k} games.",
        ],
        ["For {k} days {s} gives away {n} {o} a day."],
    ),
    "sell": (
        [
            "{S} sells the {o} for {n} dollars each.",
            "Then {s} sells all the {o} at {n} dollars each.",
            "A shop buys all {the} {o} for {n} dollars each.",
            "{S} gets {n} dollars for each of the {o}.",
            "A neighbor buys {the} {o} at {n} dollars each.",
            "A friend pays {m} {n} dollars for each of {the} {o}.",
        ],
        ["For each of {the} {o} a shop pays {m} {n} dollars."],
    ),
}
_MONEY = {
    "money": (
        [
            "{A} has {n} dollars.",
            "{A} has {n} dollars to spend.",
            "{A} goes to the shop with {n} dollars.",
            "{A} starts the day with {n} dollars.",
            "There are {n} dollars in {A}'s pocket.",
            "{A} gets {n} dollars from {h} {rel}.",
        ],
        ["{A} starts with {n} dollars in {h} pocket."],
    ),
    "earn": (
        [
            "{A} works {k} hours for {n} dollars an hour.",
            "{A} saves {n} dollars a week for {k} weeks.",
            "{A} washes {k} cars for {n} dollars each.",
            "{A} gets {n} dollars a day for {k} days.",
            "{A} cleans {k} rooms for {n} dollars each.",
            "{A} helps {k} neighbors, and each pays {n} dollars.",
        ],
        ["For {k} weeks {A} gets {n} dollars a week."],
    ),
    "get_money": (
        [
            "{S} finds {n} dollars.",
            "{H} {rel} gives {m} {n} dollars.",
            "{S} gets {n} more dollars from a friend.",
            "Then {s} earns {n} more dollars.",
            "A neighbor pays {m} {n} dollars for help.",
            "Later {s} wins {n} dollars in a game.",
        ],
        ["For {h} help {s} gets {n} more dollars."],
    ),
    "spend": (
        [
            "{S} spends {n} dollars on a {thing}.",
            "{S} buys a {thing} for {n} dollars.",
            "Then {s} pays {n} dollars for a {thing}.",
            "{S} gives {n} dollars to {h} {rel}.",
            "Then {s} loses {n} dollars.",
            "{S} buys a {thing} that costs {n} dollars.",
        ],
        ["Then {s} pays for a {thing} that costs {n} dollars."],
    ),
    "buy": (
        [
            "{S} buys {k} {o} for {n} dollars each.",
            "{S} buys {k} {o} that cost {n} dollars each.",
            "{S} buys {k} {o}. Each {one} costs {n} dollars.",
            "Then {s} buys {k} {o} at {n} dollars each.",
            "{S} pays {n} dollars for each of {k} {o}.",
            "At {n} dollars each, {s} buys {k} {o}.",
        ],
        ["Each {one} costs {n} dollars, and {s} buys {k} {o}."],
    ),
}
_CROWDS = {
    "crowd": (
        [
            "There are {n} {o} {at}.",
            "In the morning there are {n} {o} {at}.",
            "At first there are {n} {o} {at}.",
            "At noon there are {n} {o} {at}.",
            "{A} sees {n} {o} {at}.",
            "{A} counts {n} {o} {at}.",
        ],
        ["In the morning {A} counts {n} {o} {at}."],
    ),
    "crowd_groups": (
        [
            "There are {k} groups of {n} {o} {at}.",
            "{A} sees {k} groups of {n} {o} {at}.",
            "In the morning there are {k} groups of {n} {o} {at}.",
            "At first {k} groups of {n} {o} are {at}.",
            "{A} counts {k} groups {at}. Each has {n} {o}.",
            "At noon there are {k} groups {at}, each of {n} {o}.",
        ],
        ["At noon {A} sees {k} groups {at}, each of {n} {o}."],
    ),
    "come": (
        [
            "Then {n} more {o} {come}.",
            "Soon {n} more {o} {come}.",
            "After that {n} more {o} {come}.",
            "An hour later {n} more {o} {come}.",
            "Later {n} other {o} {come}.",
            "Then another {n} {o} {come}.",
        ],
        ["Soon after that another {n} {o} {come}."],
    ),
    "go": (
        [
            "Then {n} {o} {go}.",
            "Soon {n} of the {o} {go}.",
            "After that {n} {o} {go}.",
            "An hour later {n} of the {o} {go}.",
            "Later {n} of the {o} {go}.",
            "In the evening {n} {o} {go}.",
        ],
        ["Soon after that {n} of the {o} {go}."],
    ),
    "come_groups": (
        [
            "Then {k} groups of {n} {o} {come}.",
            "Soon {k} groups of {n} {o} each {come}.",
            "For {k} hours, {n} more {o} {come} every hour.",
            "Every hour {n} more {o} {come}, for {k} hours.",
            "After that {k} groups of {n} {o} {come}.",
            "Then {k} more groups {come}, each of {n} {o}.",
        ],
        ["Later {k} more groups of {n} {o} each {come}."],
    ),
    "next": (
        [
            "The next day there are {r} {o} {at}.",
            "On Monday there are {r} {o} {at}.",
            "In the evening there are {r} {o} {at}.",
            "A day later there are {r} {o} {at}.",
            "The next morning there are {r} {o} {at}.",
            "A week later there are {r} {o} {at}.",
        ],
        ["On Tuesday morning there are {r} {o} {at}."],
    ),
}


def _named(texts: list[str], key: str) -> tuple[Wording, ...]:
    return tuple(Wording(f"{key}{number}", text) for number, text in enumerate(texts))


_ALL = {**_HAS, **_CHANGES, **_MONEY, **_CROWDS, **QUESTIONS, **ASIDES}
TRAINED = {key: _named(texts, f"{key}.") for key, (texts, _) in _ALL.items()}
RESERVED = {key: _named(texts, f"{key}.reserved.") for key, (_, texts) in _ALL.items()}
