"""The words that the stories of `word_problems` are filled with.

Everything that may follow "a" begins with a consonant, and every quantity is 2 or more, so that no wording needs
more than the forms given here.
"""

from sinklens.tasks.draws import Draws

GIRLS = (
    "Mia", "Anna", "Emma", "Lucy", "Nora", "Sara", "Ella", "Julia", "Rosa", "Clara", "Alice", "Grace", "Hannah",
    "Lena", "Maya", "Olivia", "Ruby", "Sofia", "Zoe", "Ivy", "Kate", "Laura", "Nina", "Amy",
)  # fmt: skip
BOYS = (
    "Tom", "Ben", "Sam", "Leo", "Max", "Noah", "Jack", "Paul", "Adam", "David", "Eric", "Felix", "George", "Henry",
    "Ivan", "John", "Karl", "Luke", "Mark", "Nick", "Oscar", "Peter", "Tim", "Will",
)  # fmt: skip

# Small things that can be owned, found, bought, lost and sold: one, many.
OBJECTS = (
    ("apple", "apples"), ("orange", "oranges"), ("pear", "pears"), ("plum", "plums"), ("lemon", "lemons"),
    ("banana", "bananas"), ("peach", "peaches"), ("cherry", "cherries"), ("cookie", "cookies"), ("muffin", "muffins"),
    ("egg", "eggs"), ("nut", "nuts"), ("carrot", "carrots"), ("potato", "potatoes"), ("onion", "onions"),
    ("tomato", "tomatoes"), ("candy", "candies"), ("cupcake", "cupcakes"), ("book", "books"), ("pen", "pens"),
    ("pencil", "pencils"), ("crayon", "crayons"), ("brush", "brushes"), ("notebook", "notebooks"),
    ("sticker", "stickers"), ("stamp", "stamps"), ("card", "cards"), ("postcard", "postcards"), ("badge", "badges"),
    ("ticket", "tickets"), ("marble", "marbles"), ("shell", "shells"), ("stone", "stones"), ("bead", "beads"),
    ("button", "buttons"), ("ribbon", "ribbons"), ("feather", "feathers"), ("ball", "balls"), ("balloon", "balloons"),
    ("toy", "toys"), ("doll", "dolls"), ("block", "blocks"), ("puzzle", "puzzles"), ("kite", "kites"),
    ("magnet", "magnets"), ("candle", "candles"), ("cup", "cups"), ("plate", "plates"), ("spoon", "spoons"),
    ("mug", "mugs"), ("bottle", "bottles"), ("hat", "hats"), ("scarf", "scarves"), ("flower", "flowers"),
    ("rose", "roses"), ("seed", "seeds"), ("leaf", "leaves"), ("key", "keys"),
)  # fmt: skip
# What a number of small things is kept in: one, many.
CONTAINERS = (
    ("box", "boxes"),
    ("bag", "bags"),
    ("basket", "baskets"),
    ("jar", "jars"),
    ("sack", "sacks"),
    ("case", "cases"),
    ("tin", "tins"),
    ("crate", "crates"),
)
# What a person spends a sum on.
THINGS = (
    "bike", "lamp", "game", "coat", "cake", "ring", "phone", "chair", "drum", "shirt", "watch", "table", "pizza",
    "skirt", "tent", "map",
)  # fmt: skip
# Where living things and vehicles come and go: many, where they are, how they come, how they leave.
PLACES = (
    ("people", "on the bus", "get on", "get off"),
    ("people", "on the train", "get on", "get off"),
    ("children", "in the park", "come in", "go home"),
    ("children", "in the pool", "jump in", "climb out"),
    ("students", "in the library", "come in", "walk out"),
    ("guests", "in the hall", "come in", "go home"),
    ("birds", "in the tree", "fly in", "fly away"),
    ("ducks", "on the pond", "fly in", "fly away"),
    ("dogs", "in the yard", "run in", "run away"),
    ("cows", "in the barn", "walk in", "walk out"),
    ("sheep", "in the field", "walk in", "run away"),
    ("cars", "in the lot", "drive in", "drive away"),
    ("trucks", "at the station", "drive in", "drive away"),
    ("boats", "at the dock", "sail in", "sail away"),
)
# Relatives are of the other sex than the hero, so that "he" and "she" always mean one person.
_SHE = {"s": "she", "S": "She", "m": "her", "h": "her", "H": "Her"}
_HE = {"s": "he", "S": "He", "m": "him", "h": "his", "H": "His"}
_MEN = ("brother", "father", "uncle", "grandfather", "cousin Joe")
_WOMEN = ("sister", "mother", "aunt", "grandmother", "cousin Eve")


class Person:
    """A name with its pronouns, and a relative who cannot be mistaken for them."""

    __slots__ = ("name", "pronouns", "relative")

    def __init__(self, name: str, *, girl: bool, relative: str) -> None:
        self.name = name
        self.pronouns = _SHE if girl else _HE
        self.relative = relative


def draw_people(draws: Draws) -> tuple[Person, Person]:
    """A girl and a boy, in either order."""
    girl = Person(draws.pick(GIRLS), girl=True, relative=draws.pick(_MEN))
    boy = Person(draws.pick(BOYS), girl=False, relative=draws.pick(_WOMEN))
    return (girl, boy) if draws.chance(0.5) else (boy, girl)
