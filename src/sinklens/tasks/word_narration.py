"""Putting a story of `word_problems` into words: names, objects, and one wording for each thing told."""

from typing import Any, NamedTuple

from sinklens.tasks import word_lexicon as lexicon
from sinklens.tasks.draws import Draws
from sinklens.tasks.word_stories import Story
from sinklens.tasks.word_wordings import RESERVED, TRAINED

_RESERVED_SHARE = 0.4  # of the sentences of the split "templates"
_NAME_SHARE = 0.4  # of the subjects are the hero's name; the others a pronoun


class Narration(NamedTuple):
    sentences: list[str]
    wordings: list[str]  # their names
    reserved: bool  # whether one of them is kept from training


def narrate(story: Story, world: str) -> Narration:
    draws = story.draws
    people = lexicon.draw_people(draws)
    words = _cast(*people) | _scene(draws, world)
    sentences: list[str] = []
    names: list[str] = []
    any_reserved = False
    for number, (key, fields) in enumerate(story.told):
        if number == story.swapped_at:
            people = people[::-1]
            words |= _cast(*people)
            words["the"] = f"{people[0].name}'s"
        reserved = story.split == "templates" and draws.chance(_RESERVED_SHARE)
        name, text = draws.pick((RESERVED if reserved else TRAINED)[key])
        while name in names:  # nothing is said twice in the same way; a reserved wording has then been used before
            name, text = draws.pick(TRAINED[key])
        any_reserved |= reserved
        hero = people[0]
        if draws.chance(_NAME_SHARE):
            words["S"] = words["s"] = hero.name
        else:
            words["S"], words["s"] = hero.pronouns["S"], hero.pronouns["s"]
        sentences.append(text.format_map(words | fields))
        names.append(name)
    return Narration(sentences, names, any_reserved)


def _cast(hero: lexicon.Person, other: lexicon.Person) -> dict[str, Any]:
    return {**hero.pronouns, "A": hero.name, "B": other.name, "rel": hero.relative}


def _scene(draws: Draws, world: str) -> dict[str, Any]:
    if world == "crowds":
        many, at, come, go = draws.pick(lexicon.PLACES)
        return {"o": many, "at": at, "come": come, "go": go}
    if world == "money":
        return {"o": "dollars"}
    one, many = draws.pick(lexicon.OBJECTS)
    container, containers = draws.pick(lexicon.CONTAINERS)
    return {"the": "the", "one": one, "o": many, "c": container, "cs": containers}
