"""People and things that the arithmetic stories are about, with the names kept out of training.

Knows word lists only; no grammar, no numbers. `HELD_OUT_PEOPLE` must never reach a training document:
evaluation uses them to see whether a model reads a story or recalls one.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Person:
    """A name with its pronouns."""

    name: str
    subject: str  # "She"
    object: str  # "her"


@dataclass(frozen=True, slots=True)
class Theme:
    """What is counted, what holds it, and where."""

    items: str  # plural
    item: str  # singular
    boxes: str  # plural of the container
    box: str  # singular of the container
    place: str


def _people(women: str, men: str) -> tuple[Person, ...]:
    return tuple(Person(name, "She", "her") for name in women.split()) + tuple(Person(name, "He", "him") for name in men.split())


PEOPLE = _people(
    "Ann Mara Lina Rosa Vera Nora Emma Ida Clara Julia Sofia Alma Greta Maya Hana Leila Zoe Iris Ruth Eva "
    "Tara Nina Olga Paula Rita Dora Elsa Fiona Gwen Helen Irene Jana Kira Laura Mona Naomi Petra Sara Tilda Wanda",
    "Tom Ben Omar Luis Ivan Karl Hugo Noah Leo Max Paul Adam Felix Oscar Emil Jonas Simon Victor Walter Yusuf "
    "Amir Boris Carlos David Eric Frank George Henry Ian Jack Kofi Liam Marco Nils Otto Peter Ravi Samuel Theo Viktor",
)
HELD_OUT_PEOPLE = _people(
    "Agatha Brunhild Cosima Delphine Esmeralda Philippa Rosalind Winifred",
    "Balthazar Cornelius Demetrius Ferdinand Giovanni Leopold Maximilian Zebulon",
)

_STARTS = "Al Bar Cor Del Es Fer Gio Har Il Jo Ka Lor Mar Nor Or Pen Quin Ros San Tor Ul Ver Wil Xan Yor Zeb".split()
_MIDDLES = "a e i o u an el in or ul ia eo ber del fin gan lan mir nel per ri sta ti vin".split()
_ENDS = "a da la na ra sa ta us os is el en in on ar er ard bert dine fred gund mund lia rik rit ton vin wen".split()
_COMMON_SHARE = 0.4
# Names of any letters, so that no length and no row of token pieces is new to a reader of them.
_ONSETS = "b bh c ch d dr f fl g gh gr h j k kl kr l m n p ph pr qu r s sh st t th tr v w x y z".split()
_VOWELS = "a a e e i i o o u ae ai au ea eo ia ie io oa ou ue y".split()
_CODAS = "b ck d f ff l ld ll m mm n nd ng nn p pp r rd rr s ss st t th tt x z".split()
_CODA_SHARE = 0.4
_ANY_LETTERS_SHARE = 0.6


def draw_people(random: Random, count: int, held_out: bool) -> list[Person]:
    """Different people; half of the training ones have made-up names, so that a name must be read, not recalled."""
    if held_out:
        return random.sample(HELD_OUT_PEOPLE, count)
    found: dict[str, Person] = {}
    while len(found) < count:
        person = random.choice(PEOPLE) if random.random() < _COMMON_SHARE else _made_up(random)
        found[person.name] = person
    return list(found.values())


def _made_up(random: Random) -> Person:
    while True:
        name = _any_letters(random) if random.random() < _ANY_LETTERS_SHARE else _likely(random)
        if all(name != person.name for person in HELD_OUT_PEOPLE):
            return Person(name, *random.choice((("She", "her"), ("He", "him"))))


def _likely(random: Random) -> str:
    middle = random.choice(_MIDDLES) if random.random() < 0.6 else ""
    return random.choice(_STARTS) + middle + random.choice(_ENDS)


def _any_letters(random: Random) -> str:
    syllables = (random.choice(_ONSETS) + random.choice(_VOWELS) + _coda(random) for _ in range(random.randint(2, 3)))
    return "".join(syllables).capitalize()


def _coda(random: Random) -> str:
    return random.choice(_CODAS) if random.random() < _CODA_SHARE else ""


_THEMES = """
apples apple crates crate orchard
pears pear baskets basket garden
oranges orange boxes box market
lemons lemon bags bag kitchen
eggs egg cartons carton farm
cookies cookie tins tin bakery
muffins muffin trays tray cafe
books book shelves shelf library
stamps stamp albums album attic
coins coin jars jar bank
marbles marble bags bag playground
pencils pencil boxes box school
stickers sticker packs pack classroom
cards card decks deck club
beads bead strings string workshop
buttons button jars jar shop
shells shell buckets bucket beach
stones stone piles pile quarry
bricks brick pallets pallet yard
tiles tile stacks stack store
candles candle boxes box church
flowers flower bunches bunch park
roses rose vases vase greenhouse
tickets ticket rolls roll theater
toys toy chests chest nursery
chairs chair rows row hall
bottles bottle racks rack cellar
cups cup shelves shelf cupboard
plates plate stacks stack restaurant
photos photo albums album studio
letters letter sacks sack office
nails nail packets packet garage
screws screw drawers drawer factory
seeds seed packets packet field
fish fish tanks tank harbor
balloons balloon bunches bunch fair
ribbons ribbon rolls roll mill
magnets magnet trays tray lab
postcards postcard folders folder museum
feathers feather bundles bundle barn
"""


def _themes() -> tuple[Theme, ...]:
    rows = [line.split() for line in _THEMES.split("\n") if line]
    return tuple(Theme(items=r[0], item=r[1], boxes=r[2], box=r[3], place=r[4]) for r in rows)


THEMES = _themes()
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
