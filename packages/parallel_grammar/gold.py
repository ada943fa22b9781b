"""Gold annotations: word alignments, and the words that decide German forms.

    >>> from parallel_grammar import Rng, sentence
    >>> found = annotate(sentence(Rng(0)))
    >>> found.source[:3], found.target[:3]
    (('My', 'doctor', 'forgets'), ('Mein', 'Arzt', 'vergisst'))
    >>> sorted(found.sure)[:3]
    [(0, 0), (1, 1), (2, 2)]
    >>> found.decisions[2]
    Decision(target=2, phenomenon='verb agreement', sources=(1,), targets=(1,))

The first line says that 'doctor' and 'Arzt' decide the form of 'vergisst'.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from parallel_grammar import english, german
from parallel_grammar.lexemes import (
    Adjective,
    Adverb,
    Determiner,
    Modal,
    Noun,
    Preposition,
    Verb,
)
from parallel_grammar.syntax import (
    INFINITIVES,
    Clause,
    Nominal,
    NounPhrase,
    Pronoun,
    RelativePronoun,
    Sentence,
    Subordinate,
)
from parallel_grammar.tagged import Unit, Word

# The rules of `Decision`, which determine the form or place of a German word.
PHENOMENA = {
    'verb agreement': 'The finite verb agrees with the subject in person and number.',
    'reflexive': 'The reflexive pronoun agrees with a pronoun that is the subject.',
    'gender': 'A determiner or adjective agrees with its noun in gender.',
    'number': 'A determiner or adjective agrees with its noun in number.',
    'case': 'The verb or preposition governs the case of its phrase.',
    'declension': 'The determiner decides whether an adjective is weak or strong.',
    'relative pronoun': 'It agrees with its antecedent in gender and number.',
    'pronoun gender': "'it' and 'its' have the gender of the German antecedent.",
    'separable prefix': 'The verb decides the prefix at the end of the clause.',
    'perfect auxiliary': 'The verb decides between haben and sein.',
    'verb form': 'An auxiliary, a modal or to requires a participle or an infinitive.',
    'verb-final order': 'A conjunction or relative pronoun moves the verb to the end.',
}


class Decision(NamedTuple):
    """The words that decide the form or place of a target word.

    Attributes:
      target: Index of the target word.
      phenomenon: The rule, from `PHENOMENA`.
      sources: Indices of the source words that decide; empty if none expresses it.
      targets: Indices of the target words that decide, without the word itself.
    """

    target: int
    phenomenon: str
    sources: tuple[int, ...]
    targets: tuple[int, ...]


class Gold(NamedTuple):
    """The alignment and the decisions of a pair.

    Attributes:
      source, target: Words, split at spaces, without punctuation.
      sure: Pairs of indices (source, target) of words that translate each other.
      possible: All acceptable pairs, including the sure ones. They add words that
        help to express the same: 'is' of 'is sleeping', which is 'schläft'.
      decisions: By target word.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    sure: frozenset[tuple[int, int]]
    possible: frozenset[tuple[int, int]]
    decisions: tuple[Decision, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            **self._asdict(),
            'sure': sorted(self.sure),
            'possible': sorted(self.possible),
            'decisions': [decision._asdict() for decision in self.decisions],
        }


def annotate(tree: Sentence) -> Gold:
    """Returns the alignment of a pair, and the decisions about its German forms.

    Sure and possible pairs are those of Och and Ney (2003), "A systematic comparison of
    various statistical alignment models". A unit decides a form if the form changes
    with the unit: the case of a phrase decides 'den', but not 'die'.
    """
    tree = _with_distinct_nodes(tree)
    sources = _without_commas(english.words(tree))
    targets = _without_commas(german.words(tree))
    sure = _sharing(_sure(sources), _sure(targets))
    helped = _sharing(_units(sources), _sure(targets))
    possible = helped | _sharing(_sure(sources), _units(targets))
    return Gold(
        _texts(english.sentence(tree)),
        _texts(german.sentence(tree)),
        sure,
        possible,
        tuple(_decisions(sources, targets)),
    )


def _without_commas(words: Iterable[Word]) -> list[Word]:
    return [word for word in words if word != ',']


def _texts(sentence: str) -> tuple[str, ...]:
    return tuple(word.rstrip(',.?') for word in sentence.split())


def _sure(words: Iterable[Word]) -> list[set[Unit]]:
    return [set(word.sure) for word in words]


def _units(words: Iterable[Word]) -> list[set[Unit]]:
    return [{*word.sure, *word.possible} for word in words]


def _sharing(
    sources: list[set[Unit]], targets: list[set[Unit]]
) -> frozenset[tuple[int, int]]:
    return frozenset(
        (i, j)
        for i, of_source in enumerate(sources)
        for j, of_target in enumerate(targets)
        if not of_source.isdisjoint(of_target)
    )


def _decisions(sources: list[Word], targets: list[Word]) -> Iterable[Decision]:
    for j, word in enumerate(targets):
        by_phenomenon: dict[str, list[Unit]] = {}
        for phenomenon, unit in word.deciders():
            by_phenomenon.setdefault(phenomenon, []).append(unit)
        for phenomenon, units in by_phenomenon.items():
            of_source = _words_expressing(sources, units)
            of_target = [k for k in _words_expressing(targets, units) if k != j]
            if of_source or of_target:
                yield Decision(j, phenomenon, tuple(of_source), tuple(of_target))


def _words_expressing(words: list[Word], units: Iterable[Unit]) -> list[int]:
    return [i for i, word in enumerate(words) if not set(units).isdisjoint(word.sure)]


# ---- References ----------------------------------------------------------------------

_LEXEMES = Adjective | Adverb | Determiner | Modal | Noun | Preposition | Verb


@dataclass(frozen=True)
class _References:
    """The nouns that the pronouns of a clause refer to."""

    relative: Noun | None = None  # of a relative pronoun
    it: Noun | None = None
    its: Noun | None = None  # of the determiner 'its'


def _with_distinct_nodes(tree: Sentence) -> Sentence:
    """Copies the tree, so that each node occurs once, and resolves its references.

    A sampled tree has the same object for each occurrence of a word.
    """
    clauses: list[Clause] = []
    for clause in tree.clauses:
        before = clauses[-1] if clauses else None
        subject = before.subject if before and clause.elided else None
        clauses.append(
            _clause(clause, _References(it=_antecedent_of_it(before)), subject)
        )
    return replace(tree, clauses=tuple(clauses))


def _clause(
    clause: Clause, known: _References, subject: Nominal | None = None
) -> Clause:
    """Copies a clause; `subject` is the copied subject that it shares, if any."""
    lead = clause.lead and _subordinate(clause.lead, known)
    if lead:
        known = replace(known, it=_antecedent_of_it(lead.clause))
    subject = subject or _copy(clause.subject, known)
    known = replace(known, its=getattr(subject, 'noun', None))
    names = [field.name for field in fields(Clause)]
    parts = {
        name: _copy(getattr(clause, name), known)
        for name in names
        if name not in ('subject', 'lead', 'tail', 'verb', 'modal')
    }
    copied = replace(clause, subject=subject, lead=lead, **parts)
    if not clause.tail:
        return copied
    tail = _subordinate(
        clause.tail, replace(known, it=_antecedent_of_it(copied)), subject
    )
    return replace(copied, tail=tail)


def _subordinate(
    part: Subordinate, known: _References, subject: Nominal | None = None
) -> Subordinate:
    """Copies a subordinate clause; an infinitive shares the subject."""
    shared = subject if part.conjunction in INFINITIVES else None
    return part._replace(clause=_clause(part.clause, known, shared))


def _copy(node: Any, known: _References) -> Any:
    match node:
        case NounPhrase():
            return _noun_phrase(node, known)
        case RelativePronoun():
            return node._replace(noun=known.relative or node.noun)
        case Pronoun():
            antecedent = known.it if node.english == 'it' else None
            return node._replace(antecedent=antecedent)
        case str() | int() | None:
            return node
        case _ if isinstance(node, _LEXEMES):
            return node._make(node)
    return node._make(_copy(part, known) for part in node)


def _noun_phrase(phrase: NounPhrase, known: _References) -> NounPhrase:
    noun = phrase.noun._make(phrase.noun)
    owner = _copy(phrase.owner, known)
    antecedent = known.its if phrase.determiner.english == 'its' else None
    relative = phrase.relative
    if relative:
        relative = _clause(relative, replace(known, relative=noun))
    return replace(
        phrase, noun=noun, owner=owner, relative=relative, antecedent=antecedent
    )


def _antecedent_of_it(clause: Clause | None) -> Noun | None:
    """Returns the noun of a clause that a later 'it' refers to."""
    if not clause:
        return None
    for nominal in (clause.subject, clause.object, clause.recipient):
        if isinstance(nominal, Pronoun) and nominal.antecedent:
            return nominal.antecedent
        if not isinstance(nominal, NounPhrase) or nominal.plural:
            continue
        if nominal.noun.pronoun == 'it':
            return nominal.noun
    return None
