"""Plain prose of high entropy from a probabilistic grammar: grammatical, unpredictable, meaningless.

Its only purpose is text on which a small draft rarely guesses the next word, so that acceptance spans a
wide range. Knows grammar; the words are in `words`. Deterministic given the `random.Random` it is handed.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from outrider_models.words import (
    ADJECTIVES,
    ADVERBS,
    CONNECTIVES,
    NOUNS,
    OPENERS,
    PREPOSITIONS,
    TIMES,
    VERBS_ALONE,
    VERBS_ON,
)

_VOWELS = "aeiou"
_PROMPTS = (
    "Write a few sentences about a {topic}.",
    "Tell me about the {topic}.",
    "Describe a {topic} and a {other}.",
    "Write a short text with the words {topic} and {other}.",
    "Tell a story about a {topic}.",
)


@dataclass(frozen=True, slots=True)
class Prose:
    """A request for prose and one text that answers it."""

    prompt: str
    text: str
    variant: str  # "topic" or "continue"


def write_prose(random: Random) -> Prose:
    """Either a topic and a text whose first sentence is about it, or an opening sentence and what follows."""
    num_sentences = random.randint(3, 8)
    if random.random() < 0.5:
        first = write_sentence(random)
        return Prose(f"Continue this text: {first}", write_paragraph(random, num_sentences), "continue")
    topic, other = random.sample(NOUNS, 2)
    prompt = random.choice(_PROMPTS).format(topic=topic, other=other)
    first = _finish(_clause(random, subject=_noun_phrase(random, topic)))
    return Prose(prompt, f"{first} {write_paragraph(random, num_sentences - 1)}", "topic")


def write_paragraph(random: Random, num_sentences: int) -> str:
    """Sentences joined by single spaces."""
    return " ".join(write_sentence(random) for _ in range(num_sentences))


def write_sentence(random: Random) -> str:
    """One sentence: one clause or two joined, sometimes opened by a time or a connective word."""
    sentence = _clause(random)
    if random.random() < 0.35:
        sentence += f", {random.choice(CONNECTIVES)} {_clause(random)}"
    roll = random.random()
    if roll < 0.15:
        sentence = f"{random.choice(OPENERS)}, {sentence}"
    elif roll < 0.3:
        sentence = f"{random.choice(TIMES)}, {sentence}"
    return _finish(sentence)


def _finish(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:] + "."


def _clause(random: Random, subject: str | None = None) -> str:
    subject = subject or _noun_phrase(random)
    alone = random.random() < 0.35
    middle = random.choice(VERBS_ALONE) if alone else f"{random.choice(VERBS_ON)} {_noun_phrase(random)}"
    ending = ""
    if random.random() < 0.35:
        ending = f" {random.choice(PREPOSITIONS)} {_noun_phrase(random)}"
    elif random.random() < 0.4:
        ending = f" {random.choice(ADVERBS)}"
    elif random.random() < 0.25:
        ending = f" {random.choice(TIMES)}"
    return f"{subject} {middle}{ending}"


def _noun_phrase(random: Random, noun: str | None = None) -> str:
    noun = noun or random.choice(NOUNS)
    described = noun if random.random() < 0.45 else f"{random.choice(ADJECTIVES)} {noun}"
    roll = random.random()
    if roll < 0.5:
        return f"the {described}"
    if roll < 0.85:
        return f"{'an' if described[0] in _VOWELS else 'a'} {described}"
    return f"{random.choice(('his', 'her', 'their', 'my', 'our', 'every', 'this', 'that'))} {described}"
