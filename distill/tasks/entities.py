"""The entities of a sentence, by the tags of its words."""

from collections.abc import Sequence

# The tag of a word that is in no entity.
OUTSIDE = "O"
# What the places are called in IOB, BIO, IOBES, BILOU, BIOUL and BMES -> in conlleval.
PLACES = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S"}


def place_and_type(tag: str) -> tuple[str, str] | None:
    """The place of a word in its entity, as conlleval calls it, and the entity's type, from a tag such as B-LOC, B_LOC,
    LOC-B or, without types, B; None for other tags.
    """
    if tag in PLACES:
        return PLACES[tag], ""
    if tag[:1] in PLACES and tag[1:2] in ("-", "_") and tag[2:]:
        return PLACES[tag[0]], tag[2:]
    if tag[-1:] in PLACES and tag[-2:-1] in ("-", "_") and tag[:-2]:
        return PLACES[tag[-1]], tag[:-2]
    return None


def entities_of(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """The entities of a sentence as (type, first word, last word), by the rules of the official script conlleval.

    Args:
        tags: of the words, as `place_and_type` reads them: the places are B, I, E (last word) and S (single word); all
            other tags are "O". A word belongs to the entity of the word before it if its place is I or E, that of the
            word before is B or I, and their types are equal; every other word that is not O begins an entity.
    """
    entities: list[tuple[str, int, int]] = []
    place_before = kind_before = ""
    for word, tag in enumerate(tags):
        place, kind = place_and_type(tag) or ("", "")
        if place in ("I", "E") and place_before in ("B", "I") and kind == kind_before:
            entities[-1] = (kind, entities[-1][1], word)
        elif place:
            entities.append((kind, word, word))
        place_before, kind_before = place, kind
    return entities
