"""Language-independent syntax trees, without agreement, case and word order."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from parallel_grammar.lexemes import (
    Adjective,
    Adverb,
    Determiner,
    Modal,
    Noun,
    Preposition,
    Verb,
)

# Persons for verb agreement, as indices into a verb's forms: I, you, he/she/it, we,
# they.
FIRST, SECOND, THIRD, FIRST_PLURAL, THIRD_PLURAL = range(5)

PERSONS = ('man', 'woman', 'child')  # kinds of nouns with the interrogative 'who'
INFINITIVES = (
    'to',
    'in order to',
)  # conjunctions whose clause has no subject


# ---- Noun phrases --------------------------------------------------------------------


class Expletive(NamedTuple):
    """A subject without a referent: 'it' rains, 'there' is a dog."""

    english: str
    person: int = THIRD


class Pronoun(NamedTuple):
    """A pronoun. `gender` is that of the German noun it refers to.

    `gold` sets `antecedent`, the noun that 'it' refers to.
    """

    english: str
    gender: str = ''
    antecedent: Noun | None = None

    @property
    def person(self) -> int:
        persons = {'I': FIRST, 'you': SECOND, 'we': FIRST_PLURAL, 'they': THIRD_PLURAL}
        return persons.get(self.english, THIRD)


class Name(NamedTuple):
    name: str
    gender: str
    german: str  # cities have German names
    person: int = THIRD


class Interrogative(NamedTuple):
    human: bool
    person: int = THIRD


class RelativePronoun(NamedTuple):
    noun: Noun
    plural: bool

    @property
    def person(self) -> int:
        return THIRD_PLURAL if self.plural else THIRD


@dataclass(frozen=True, slots=True)
class NounPhrase:
    """A noun with what describes it.

    `gold` sets `antecedent`, the noun that the determiner 'its' refers to.
    """

    noun: Noun
    determiner: Determiner
    plural: bool = False
    adjective: Adjective | None = None
    owner: 'NounPhrase | Name | RelativePronoun | None' = None
    relative: 'Clause | None' = None
    antecedent: Noun | None = None

    @property
    def person(self) -> int:
        return THIRD_PLURAL if self.plural else THIRD


class Both(NamedTuple):
    first: 'NounPhrase | Name'
    second: 'NounPhrase | Name'
    person: int = THIRD_PLURAL


Nominal = (
    Expletive | Pronoun | Name | Interrogative | RelativePronoun | NounPhrase | Both
)


# ---- Other constituents --------------------------------------------------------------


class Prepositional(NamedTuple):
    preposition: Preposition
    phrase: Nominal


class Comparison(NamedTuple):
    """'bigger than the dog', or 'as big as the dog' if `equal`."""

    adjective: Adjective
    phrase: Nominal
    equal: bool = False


class Subordinate(NamedTuple):
    conjunction: str
    clause: 'Clause'


@dataclass(frozen=True, slots=True)
class Clause:
    """One verb and its parts. `front` names the part in first position."""

    subject: Nominal
    verb: Verb
    tense: str = 'present'  # present, progressive, past, perfect, future
    modal: Modal | None = None
    negative: bool = False
    object: Nominal | None = None
    recipient: Nominal | None = None
    predicate: Adjective | Comparison | NounPhrase | None = None
    time: Adverb | None = None
    manner: Adverb | None = None
    companion: Prepositional | None = None
    place: Prepositional | Adverb | None = None
    direction: Prepositional | Adverb | None = None
    lead: Subordinate | None = None  # before the main clause
    tail: Subordinate | None = None  # after it
    front: str = 'subject'
    elided: bool = False  # without a subject: 'and eats it'

    def phrases(self) -> Iterator[tuple[Nominal, str]]:
        """Yields its noun phrases, each with its German case."""
        yield self.subject, 'nom'
        if self.object:
            yield self.object, self.verb.case
        if self.recipient:
            yield self.recipient, 'dat'
        for part, case in (
            (self.companion, 'dat'),
            (self.place, 'dat'),
            (self.direction, 'acc'),
        ):
            if isinstance(part, Prepositional):
                yield part.phrase, part.preposition.case or case
        if isinstance(self.predicate, Comparison):
            yield self.predicate.phrase, 'nom'
        elif isinstance(self.predicate, NounPhrase):
            yield self.predicate, 'nom'


@dataclass(frozen=True, slots=True)
class Sentence:
    """Clauses joined by 'and' or 'but'. `mood`: statement, question, request."""

    clauses: tuple[Clause, ...]
    joints: tuple[str, ...] = ()
    mood: str = 'statement'
    please: bool = False
