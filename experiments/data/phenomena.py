"""What the grammar put into the sentences of a set: negation, separable verbs, ….

The trees that the sentences were read from say it; the text alone would not.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from experiments.data import sources
from experiments.data.grammar.held_out import POSSESSIVES
from experiments.data.grammar.syntax import (
    INFINITIVES,
    Both,
    Clause,
    Comparison,
    Nominal,
    NounPhrase,
    Pronoun,
    Sentence,
)
from experiments.data.sources.grammar import Grammar


class PlacedClause(NamedTuple):
    """A clause, and where it stands in its sentence.

    Attributes:
      clause: the clause.
      kind: main, subordinate, infinitive or relative.
      mood: of a main clause: statement, question or request; of others empty.
    """

    clause: Clause
    kind: str
    mood: str


Test = Callable[[PlacedClause], bool]


def clauses(tree: Sentence) -> Iterator[PlacedClause]:
    """Every clause of a sentence, those inside of others too."""
    for clause in tree.clauses:
        yield from _within(PlacedClause(clause, 'main', tree.mood))


def _within(place: PlacedClause) -> Iterator[PlacedClause]:
    yield place
    for nominal, _ in place.clause.phrases():
        for phrase in _noun_phrases(nominal):
            if phrase.relative:
                yield from _within(PlacedClause(phrase.relative, 'relative', ''))
    for part in (place.clause.lead, place.clause.tail):
        if part:
            is_infinitive = part.conjunction in INFINITIVES
            kind = 'infinitive' if is_infinitive else 'subordinate'
            yield from _within(PlacedClause(part.clause, kind, ''))


def _noun_phrases(nominal: Nominal | None) -> Iterator[NounPhrase]:
    """The noun phrases of a nominal: both of two, and owners."""
    if isinstance(nominal, Both):
        yield from _noun_phrases(nominal.first)
        yield from _noun_phrases(nominal.second)
    if isinstance(nominal, NounPhrase):
        yield nominal
        if isinstance(nominal.owner, NounPhrase):
            yield from _noun_phrases(nominal.owner)


def _phrases(place: PlacedClause) -> list[tuple[NounPhrase, str]]:
    """The noun phrases of a clause, with their German case; owners left out."""
    found = []
    for nominal, case in place.clause.phrases():
        parts = (
            [nominal.first, nominal.second] if isinstance(nominal, Both) else [nominal]
        )
        found += [(part, case) for part in parts if isinstance(part, NounPhrase)]
    return found


def _auxiliary_perfect(clause: Clause) -> bool:
    """German has haben or sein with a participle."""
    is_past = clause.tense == 'past' and not clause.verb.german.past
    return (clause.tense == 'perfect' or is_past) and not clause.modal


def _is_apart(place: PlacedClause) -> bool:
    """A separable verb whose prefix stands at the end: 'Er ruft … an'."""
    clause = place.clause
    if not clause.verb.german.prefix or place.kind != 'main':
        return False
    is_whole = clause.modal or clause.tense == 'future' or _auxiliary_perfect(clause)
    return place.mood == 'request' or not is_whole


def _is_whole(place: PlacedClause) -> bool:
    return bool(place.clause.verb.german.prefix) and not _is_apart(place)


def _described_subject(place: PlacedClause) -> bool:
    subject = place.clause.subject
    return isinstance(subject, NounPhrase) and subject.relative is not None


def _has_possessive(place: PlacedClause) -> bool:
    phrases = [phrase for phrase, _ in _phrases(place)]
    return any(phrase.determiner.english in POSSESSIVES for phrase in phrases)


def _has_pronoun_of_a_thing(place: PlacedClause) -> bool:
    """'it' is er, sie or es, by the noun that is meant."""
    nominals = [nominal for nominal, _ in place.clause.phrases()]
    return any(isinstance(x, Pronoun) and x.english == 'it' for x in nominals)


# A sentence holds a phenomenon where one of its clauses does.
PHENOMENA: dict[str, Test] = {
    'agreement with a plural subject': lambda p: p.clause.subject.person in (3, 4),
    'agreement across a relative clause': _described_subject,
    'agreement, verb last': lambda p: p.kind in ('subordinate', 'relative'),
    'separable verb, prefix apart': _is_apart,
    'separable verb, in one word': _is_whole,
    'reflexive verb': lambda p: p.clause.verb.german.reflexive,
    'modal verb': lambda p: p.clause.modal is not None,
    'future': lambda p: p.clause.tense == 'future',
    'perfect with haben': lambda p: (
        _auxiliary_perfect(p.clause) and p.clause.verb.german.auxiliary != 'sein'
    ),
    'perfect with sein': lambda p: (
        _auxiliary_perfect(p.clause) and p.clause.verb.german.auxiliary == 'sein'
    ),
    'negation': lambda p: p.clause.negative,
    'question': lambda p: p.mood == 'question',
    'request': lambda p: p.mood == 'request',
    'subordinate clause': lambda p: p.kind == 'subordinate',
    'relative clause': lambda p: p.kind == 'relative',
    'infinitive with zu': lambda p: p.kind == 'infinitive',
    'time, place or object first': lambda p: (
        p.kind == 'main' and _is_inverted(p.clause)
    ),
    'two objects': lambda p: p.clause.recipient is not None,
    'dative object': lambda p: bool(p.clause.object) and p.clause.verb.case == 'dat',
    'adjective in the dative': lambda p: any(
        phrase.adjective and case == 'dat' for phrase, case in _phrases(p)
    ),
    'genitive': lambda p: any(phrase.owner for phrase, _ in _phrases(p)),
    'possessive': _has_possessive,
    'pronoun for a thing': _has_pronoun_of_a_thing,
    'comparison': lambda p: isinstance(p.clause.predicate, Comparison),
}


def _is_inverted(clause: Clause) -> bool:
    return clause.front != 'subject' or clause.lead is not None


def phenomena_of(tree: Sentence) -> list[str]:
    """The phenomena that a sentence holds."""
    places = list(clauses(tree))
    return [name for name, test in PHENOMENA.items() if any(map(test, places))]


def rows(
    data: str, name: str, pairs: Sequence[tuple[str, str]]
) -> dict[str, list[int]]:
    """Phenomenon → the numbers of a set's sentences that hold it.

    Args:
      data: the spec of the data source.
      name: the set's.
      pairs: its sentences, as a run translated them.

    Returns:
      Nothing where the source is not the grammar, or this code's grammar makes other
      sentences.

    Raises:
      UserError: the spec is wrong.
    """
    source = sources.load(data)
    if not isinstance(source, Grammar):
        return {}
    if source.evaluation().get(name) != list(pairs):
        return {}
    found: dict[str, list[int]] = {phenomenon: [] for phenomenon in PHENOMENA}
    for i, tree in enumerate(source.trees()[name]):
        for phenomenon in phenomena_of(tree):
            found[phenomenon].append(i)
    return found
