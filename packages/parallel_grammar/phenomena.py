"""Grammatical phenomena of generated sentences, from their syntax trees."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from parallel_grammar.held_out import POSSESSIVES
from parallel_grammar.syntax import (
    INFINITIVES,
    Both,
    Clause,
    Comparison,
    Nominal,
    NounPhrase,
    Pronoun,
    Sentence,
)

OF_OWNER = 'of an owner'  # used instead of a case


class PlacedClause(NamedTuple):
    """A clause and its place in a sentence.

    Attributes:
      kind: One of main, subordinate, infinitive, relative.
      mood: Statement, question or request for a main clause.
      phrases: Noun phrases with their German case, or `OF_OWNER`.
    """

    clause: Clause
    kind: str
    mood: str
    phrases: list[tuple[NounPhrase, str]]


def clauses(tree: Sentence) -> Iterator[PlacedClause]:
    for clause in tree.clauses:
        yield from _nested_clauses(clause, 'main', tree.mood)


def _nested_clauses(
    clause: Clause, kind: str, mood: str = ''
) -> Iterator[PlacedClause]:
    phrases = list(_noun_phrases(clause.phrases()))
    yield PlacedClause(clause, kind, mood, phrases)
    for phrase, _ in phrases:
        if phrase.relative:
            yield from _nested_clauses(phrase.relative, 'relative')
    for part in (clause.lead, clause.tail):
        if part:
            is_infinitive = part.conjunction in INFINITIVES
            inner = 'infinitive' if is_infinitive else 'subordinate'
            yield from _nested_clauses(part.clause, inner)


def _noun_phrases(
    nominals: Iterable[tuple[Nominal | None, str]],
) -> Iterator[tuple[NounPhrase, str]]:
    for nominal, case in nominals:
        if isinstance(nominal, Both):
            both = [(nominal.first, case), (nominal.second, case)]
            yield from _noun_phrases(both)
        if isinstance(nominal, NounPhrase):
            yield nominal, case
            yield from _noun_phrases([(nominal.owner, OF_OWNER)])


def _auxiliary(clause: Clause) -> str:
    verb = clause.verb.german
    is_past = clause.tense == 'past' and not verb.past
    is_perfect = (clause.tense == 'perfect' or is_past) and not clause.modal
    return verb.auxiliary if is_perfect else ''


def _is_separated(place: PlacedClause) -> bool:
    clause = place.clause
    if not clause.verb.german.prefix or place.kind != 'main':
        return False
    is_whole = clause.modal or clause.tense == 'future' or _auxiliary(clause)
    return place.mood == 'request' or not is_whole


def _is_whole(place: PlacedClause) -> bool:
    return bool(place.clause.verb.german.prefix) and not _is_separated(place)


def _described_subject(place: PlacedClause) -> bool:
    subject = place.clause.subject
    return isinstance(subject, NounPhrase) and subject.relative is not None


def _has_possessive(place: PlacedClause) -> bool:
    phrases = [phrase for phrase, case in place.phrases if case != OF_OWNER]
    return any(phrase.determiner.english in POSSESSIVES for phrase in phrases)


def _has_pronoun_of_a_thing(place: PlacedClause) -> bool:
    nominals = [nominal for nominal, _ in place.clause.phrases()]
    return any(isinstance(x, Pronoun) and x.english == 'it' for x in nominals)


# A sentence contains a phenomenon if one of its clauses does.
PHENOMENA: dict[str, Callable[[PlacedClause], bool]] = {
    'agreement with a plural subject': lambda p: p.clause.subject.person in (3, 4),
    'agreement across a relative clause': _described_subject,
    'agreement, verb last': lambda p: p.kind in ('subordinate', 'relative'),
    'separable verb, prefix apart': _is_separated,
    'separable verb, in one word': _is_whole,
    'reflexive verb': lambda p: p.clause.verb.german.reflexive,
    'modal verb': lambda p: p.clause.modal is not None,
    'future': lambda p: p.clause.tense == 'future',
    'perfect with haben': lambda p: _auxiliary(p.clause) == 'haben',
    'perfect with sein': lambda p: _auxiliary(p.clause) == 'sein',
    'negation': lambda p: p.clause.negative,
    'question': lambda p: p.mood == 'question',
    'request': lambda p: p.mood == 'request',
    'subordinate clause': lambda p: p.kind == 'subordinate',
    'relative clause': lambda p: p.kind == 'relative',
    'infinitive with zu': lambda p: p.kind == 'infinitive',
    'time, place or object first': lambda p: (
        p.kind == 'main' and (p.clause.front != 'subject' or p.clause.lead is not None)
    ),
    'two objects': lambda p: p.clause.recipient is not None,
    'dative object': lambda p: bool(p.clause.object) and p.clause.verb.case == 'dat',
    'adjective in the dative': lambda p: any(
        phrase.adjective and case == 'dat' for phrase, case in p.phrases
    ),
    'genitive': lambda p: any(phrase.owner for phrase, _ in p.phrases),
    'possessive': _has_possessive,
    'pronoun for a thing': _has_pronoun_of_a_thing,
    'comparison': lambda p: isinstance(p.clause.predicate, Comparison),
}


def phenomena_of(tree: Sentence) -> list[str]:
    """Returns the phenomena that a sentence contains."""
    inside = list(clauses(tree))
    return [name for name, holds in PHENOMENA.items() if any(map(holds, inside))]
