"""Short things to repeat, several in a row: practice that makes a model learn to copy early.

A copying head is found from few tokens only when what it must look up is near; the long copying tasks alone gave no
copying at all in 3.5 million tokens. Used for training only.
"""

from __future__ import annotations

from random import Random

from outrider_models.lexicon import THEMES, draw_people
from outrider_models.words import ADJECTIVES, NOUNS, VERBS_ON

_MAX_WORDS = 12
_WORDS = (*ADJECTIVES, *NOUNS, *VERBS_ON, *(theme.items for theme in THEMES))
_REQUESTS = ("Repeat this text: ", "Copy this text exactly: ", "Repeat: ")
_NUMBER_SHARE = 0.3


def write_echo(random: Random) -> tuple[str, str]:
    """A request and its answer: a few random words and numbers, and the same again."""
    words = [_word(random) for _ in range(random.randint(2, _MAX_WORDS))]
    text = random.choice((" ", " ", ", ", "\n- ")).join(words)
    return random.choice(_REQUESTS) + text, text


def _word(random: Random) -> str:
    roll = random.random()
    if roll < _NUMBER_SHARE:
        return str(random.randint(0, 999))
    return random.choice(_WORDS) if roll < 0.8 else draw_people(random, 1, held_out=False)[0].name
