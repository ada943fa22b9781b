"""Combinations of a word and a construction that are held out from training.

Training has each word and each construction, but never together.
"""

from collections.abc import Iterator

from parallel_grammar.syntax import (
    Both,
    Clause,
    Nominal,
    NounPhrase,
    RelativePronoun,
    Sentence,
)

# Construction → nouns or verbs (base forms) that never occur in it in training.
HELD_OUT = {
    'adjective in the dative': 'painter singer brother woman grandmother pig bear cow '
    'table garden',
    'relative clause': 'lawyer nurse horse wolf letter bottle coat umbrella car hotel '
    'meadow apple',
    'possessive': 'student daughter cat goose newspaper key lamp shirt chair bicycle '
    'cake',
    'modal verb': 'buy sing repair invite tidy feed visit lend travel',
    'perfect, verb last': 'give catch help meet lose understand call order throw run '
    'drink',
    'negation': 'open close love steal bring paint thank follow show sleep wash wait',
    'question': 'find hear carry build hunt explain kiss dance drive pay',
}
_HELD_OUT = {
    construction: frozenset(words.split()) for construction, words in HELD_OUT.items()
}
POSSESSIVES = frozenset(('my', 'your', 'his', 'her', 'its', 'our', 'their'))


def constructions(tree: Sentence) -> Iterator[tuple[str, str]]:
    """Yields pairs (construction, English word) for constructions in `HELD_OUT`."""
    for clause in tree.clauses:
        if tree.mood == 'question':
            yield 'question', clause.verb.english.base
        yield from _clause_constructions(clause, verb_last=False)


def _clause_constructions(clause: Clause, verb_last: bool) -> Iterator[tuple[str, str]]:
    verb = clause.verb.english.base
    if clause.modal:
        yield 'modal verb', verb
    if clause.negative:
        yield 'negation', verb
    perfect = clause.tense == 'perfect' or (
        clause.tense == 'past' and not clause.verb.german.past
    )
    if verb_last and perfect and not clause.modal:
        yield 'perfect, verb last', verb
    for phrase, case in clause.phrases():
        yield from _phrase_constructions(phrase, case)
    for part in (clause.lead, clause.tail):
        if part:
            yield from _clause_constructions(part.clause, verb_last=True)


def _phrase_constructions(phrase: Nominal, case: str) -> Iterator[tuple[str, str]]:
    if isinstance(phrase, Both):
        yield from _phrase_constructions(phrase.first, case)
        yield from _phrase_constructions(phrase.second, case)
    if not isinstance(phrase, NounPhrase):
        return
    noun = phrase.noun.english
    if phrase.adjective and case == 'dat':
        yield 'adjective in the dative', noun
    if phrase.determiner.english in POSSESSIVES and not phrase.owner:
        yield 'possessive', noun
    if phrase.owner and not isinstance(phrase.owner, RelativePronoun):
        yield from _phrase_constructions(phrase.owner, 'gen')
    if phrase.relative:
        yield 'relative clause', noun
        yield from _clause_constructions(phrase.relative, verb_last=True)


def is_held_out(tree: Sentence) -> bool:
    """Returns whether the sentence has a held-out pair.

    Examples:
      >>> from parallel_grammar import Rng, sentence
      >>> rng = Rng(0)
      >>> sum(is_held_out(sentence(rng)) for _ in range(200)) < 20
      True
    """
    return any(
        word in _HELD_OUT[construction] for construction, word in constructions(tree)
    )
