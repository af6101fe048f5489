"""How the stories of `word_problems` ask, and what they mention by the way: in the form of `word_wordings`."""

QUESTIONS = {
    "ask_now": (
        [
            "How many {o} does {s} have now?",
            "How many {o} does {s} have in the end?",
            "How many {o} does {s} have after that?",
            "So how many {o} does {s} have now?",
            "Now how many {o} does {s} have?",
            "What is the number of {o} that {s} has now?",
        ],
        ["In the end, how many {o} does {s} have?"],
    ),
    "ask_other": (
        [
            "How many {o} does {B} have?",
            "So how many {o} does {B} have?",
            "How many {o} are {B}'s?",
            "What is the number of {o} that {B} has?",
            "How many {o} does {B} have in all?",
            "Then how many {o} does {B} have?",
        ],
        ["In all, what is the number of {o} that {B} has?"],
    ),
    "ask_both": (
        [
            "How many {o} do they have together?",
            "How many {o} do {A} and {B} have in all?",
            "How many {o} do {A} and {B} have together?",
            "So how many {o} do the two have together?",
            "How many {o} do they have in all?",
            "What is the total number of {o}?",
        ],
        ["Together, how many {o} do {A} and {B} have?"],
    ),
    "ask_share": (
        [
            "{S} shares the {o} equally among {k} friends. How many {o} does each friend get?",
            "{S} packs the {o} equally into {k} {cs}. How many {o} are in each {c}?",
            "{S} puts the {o} into {k} equal groups. How many {o} are in each group?",
            "Then {k} friends share {the} {o} equally. How many {o} does each of them get?",
            "{S} divides the {o} equally among {k} children. How many {o} does each child get?",
            "All {the} {o} go into {k} {cs}, the same number in each. How many {o} does one {c} hold?",
        ],
        ["Then {k} children share all {the} {o} equally. How many {o} does one child get?"],
    ),
    "ask_sold": (
        [
            "How many dollars does {s} get?",
            "How many dollars does {s} get in all?",
            "How many dollars is that in all?",
            "So how many dollars does {s} get?",
            "How much money does {s} get?",
            "What is the total in dollars?",
        ],
        ["In all, how much money is that?"],
    ),
    "ask_left": (
        [
            "How many dollars does {s} have left?",
            "How many dollars are left?",
            "How much money does {s} have left?",
            "So how many dollars does {s} have left?",
            "How much money is left?",
            "How many dollars does {s} have in the end?",
        ],
        ["In the end, how many dollars are left?"],
    ),
    "ask_crowd": (
        [
            "How many {o} are {at} now?",
            "How many {o} are {at} in the end?",
            "How many {o} are {at} after that?",
            "So how many {o} are {at} now?",
            "Now how many {o} are {at}?",
            "What is the number of {o} {at} now?",
        ],
        ["In the end, how many {o} are {at}?"],
    ),
    "ask_rows": (
        [
            "The {o} form {k} equal groups. How many {o} are in each group?",
            "The {o} stand in {k} equal rows. How many {o} are in each row?",
            "Then the {o} form {k} equal rows. How many {o} does each row have?",
            "All the {o} are in {k} equal groups. How many {o} are in one group?",
            "The {o} form {k} rows, the same number in each. How many {o} are in one row?",
            "Now the {o} stand in {k} equal groups. How many {o} are in each group?",
        ],
        ["Now all the {o} stand in {k} equal rows. How many {o} are in one row?"],
    ),
    "ask_next": (
        [
            "How many {o} are {at} then?",
            "How many {o} are there then?",
            "So how many {o} are {at} then?",
            "How many {o} is that?",
            "Then how many {o} are {at}?",
            "What is the number of {o} then?",
        ],
        ["Then what is the number of {o} {at}?"],
    ),
}
# True, and of no use: the number in them answers nothing.
ASIDES = {
    "aside": (
        [
            "{H} school is {n} years old.",
            "The walk home takes {n} minutes.",
            "The shop is {n} minutes away.",
            "{A} is {n} years old.",
            "There are {n} children in {h} class.",
            "The next bus comes in {n} minutes.",
            "{H} house has the number {n}.",
        ],
        ["The walk to the shop takes {n} minutes."],
    ),
    "crowd_aside": (
        [
            "The next bus comes in {n} minutes.",
            "The walk home takes {n} minutes.",
            "The shop is {n} minutes away.",
            "The first house has the number {n}.",
            "The town is {n} years old.",
            "It rains for {n} minutes.",
        ],
        ["The walk to the town takes {n} minutes."],
    ),
}
