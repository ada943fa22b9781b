"""Tests of alignments and decisions against German grammar, annotated by hand."""

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from test_grammar import NAMES, as_sentence

from parallel_grammar import Gold, Rng, annotate, german, long_sentence, sentence
from parallel_grammar.gold import PHENOMENA, Decision
from parallel_grammar.lexemes import Noun, Verb
from parallel_grammar.syntax import (
    Clause,
    NounPhrase,
    RelativePronoun,
    Sentence,
)

# ---- Annotated by hand ---------------------------------------------------------------

# The tree, as in grammar.tsv, the English and the German; pairs of words that translate
# each other; other possible pairs; decisions: a German word, and for each phenomenon
# the English/German words that decide. A form is decided only by what changes it:
# 'alte' is weak before 'der', and plural nouns take 'alten', but all genders take
# 'alte' in the nominative.
GOLDENS = Path(__file__).with_name('goldens') / 'gold.txt'
ANNOTATED = [
    block.split('\n') for block in GOLDENS.read_text('utf-8').strip().split('\n\n')
]


def plain(text: str) -> tuple[str, ...]:
    return tuple(word.strip('.,?') for word in text.split())


def indices(words: tuple[str, ...], named: str) -> tuple[int, ...]:
    return tuple(words.index(word) for word in named.split())


def decisions_of(line: str, sources: tuple[str, ...], targets: tuple[str, ...]):
    """Parses `Der < gender: dog/Hund; number: dog/Hund`."""
    word, rules = line.split(' < ')
    for rule in rules.split('; '):
        phenomenon, both = rule.split(': ')
        s, t = both.split('/')
        yield Decision(
            targets.index(word), phenomenon, indices(sources, s), indices(targets, t)
        )


@pytest.mark.parametrize('block', ANNOTATED, ids=lambda block: block[1])
def test_annotations_match_those_by_hand(block):
    tree, source, target, sure, possible, *lines = block
    found = annotate(as_sentence(eval(tree, NAMES)))
    sources, targets = plain(source), plain(target)

    def pairs(text: str) -> set[tuple[int, int]]:
        both = (pair.split('=') for pair in text.partition(':')[2].split())
        return {(sources.index(s), targets.index(t)) for s, t in both}

    assert (found.source, found.target) == (sources, targets)
    assert found.sure == pairs(sure)
    assert found.possible == pairs(sure) | pairs(possible)
    expected = {x for line in lines for x in decisions_of(line, sources, targets)}
    assert set(found.decisions) == expected


def test_annotated_sentences_have_every_phenomenon():
    text = GOLDENS.read_text('utf-8')
    assert all(f' {name}: ' in text for name in PHENOMENA)


# ---- Invariants of generated sentences -----------------------------------------------


def trees(count: int) -> list[Sentence]:
    rng = Rng(11)
    return [(long_sentence if i % 4 == 0 else sentence)(rng) for i in range(count)]


# Words that English or German needs, but not the other language.
ONLY_ENGLISH = set('to do does did am is are for of the'.split())
ONLY_GERMAN = set(
    'habe hast hat haben bin bist ist sind mich dich sich uns an '
    'der die das den dem des'.split()
)


def test_every_content_word_is_aligned():
    for tree in trees(400):
        found = annotate(tree)
        sources = set(range(len(found.source))) - {i for i, _ in found.sure}
        targets = set(range(len(found.target))) - {j for _, j in found.sure}
        assert {found.source[i].lower() for i in sources} <= ONLY_ENGLISH
        assert {found.target[j].lower() for j in targets} <= ONLY_GERMAN
        assert found.sure <= found.possible


def nodes(node: Any):
    """Yields the clauses and noun phrases of a tree."""
    if isinstance(node, Clause | NounPhrase):
        yield node
    if is_dataclass(node):
        for field in fields(node):
            yield from nodes(getattr(node, field.name))
    elif isinstance(node, tuple) and not isinstance(node, Noun | Verb):
        for part in node:
            yield from nodes(part)


def mapped(node: Any, change: Any) -> Any:
    """Returns the tree with `change(node)` for each node, from the root downward."""
    new = change(node)
    if new is not node:
        return new
    if is_dataclass(node) and not isinstance(node, type):
        parts = {x.name: mapped(getattr(node, x.name), change) for x in fields(node)}
        return replace(node, **parts)
    if isinstance(node, tuple) and not isinstance(node, Noun | Verb):
        parts = [mapped(part, change) for part in node]
        return node._make(parts) if hasattr(node, '_make') else tuple(parts)
    return node


def substituted(tree: Any, old: Any, new: Any) -> Any:
    """Returns the tree with `new` for the object `old`."""
    return mapped(tree, lambda node: new if node is old else node)


def with_number(phrase: NounPhrase, plural: bool) -> NounPhrase:
    """Returns the phrase in a number, with the relative pronouns that refer to it."""

    def renumbered(node):
        refers = isinstance(node, RelativePronoun) and node.noun is phrase.noun
        return node._replace(plural=plural) if refers else node

    relative = phrase.relative and mapped(phrase.relative, renumbered)
    return replace(phrase, plural=plural, relative=relative)


def differing(found: Gold, tree: Sentence) -> set[int] | None:
    """Returns the indices of changed German words; None if their number changed."""
    words = plain(german.sentence(tree))
    if len(words) != len(found.target):
        return None
    return {j for j, word in enumerate(words) if word != found.target[j]}


def decided_by_word(found: Gold, j: int, *phenomena: str) -> set[int]:
    """Returns the target words that the target word j decides."""
    return {
        d.target
        for d in found.decisions
        if d.phenomenon in phenomena and j in d.targets
    }


def single_nouns(tree: Sentence, found: Gold):
    """Yields noun phrases with the index of the noun, if it occurs once."""
    for phrase in nodes(tree):
        if isinstance(phrase, NounPhrase):
            forms = {*phrase.noun.german.values()}
            places = [j for j, word in enumerate(found.target) if word in forms]
            if len(places) == 1:
                yield phrase, places[0]


def test_forms_change_exactly_with_the_number_of_the_noun_that_decides_them():
    compared = 0
    for tree in trees(400):
        found = annotate(tree)
        for phrase, place in single_nouns(tree, found):
            if phrase.noun.mass or any(c.elided for c in tree.clauses):
                continue
            new = substituted(tree, phrase, with_number(phrase, not phrase.plural))
            forms = differing(found, new)
            if forms is None:
                continue
            of_number = decided_by_word(found, place, 'number', 'verb agreement')
            relative = decided_by_word(found, place, 'relative pronoun')
            # A relative pronoun may change with the gender or the number.
            assert forms - {place} <= of_number | relative, (found.target, phrase)
            assert of_number - relative <= forms, (found.target, phrase)
            compared += len(of_number | relative)
    assert compared > 300


@pytest.mark.ci
def test_forms_change_exactly_with_the_gender_of_the_noun_that_decides_them():
    compared = 0
    for tree in trees(400):
        found = annotate(tree)
        for phrase, place in single_nouns(tree, found):
            genders = [phrase.noun._replace(gender=gender) for gender in 'mfn']
            by_gender = [
                differing(found, substituted(tree, phrase.noun, noun))
                for noun in genders
            ]
            if None in by_gender:
                continue
            forms = set().union(*filter(None, by_gender))
            decided = decided_by_word(found, place, 'gender')
            relative = decided_by_word(found, place, 'relative pronoun')
            assert decided <= forms <= decided | relative, (found.target, phrase)
            compared += len(decided)
    assert compared > 300


def test_forms_change_exactly_with_the_case_that_the_verb_governs():
    compared = 0
    for tree in trees(400):
        found = annotate(tree)
        clause, *others = [c for c in nodes(tree) if isinstance(c, Clause)]
        governors = (
            clause.recipient,
            clause.direction,
            clause.place,
            clause.companion,
            clause.verb.preposition,
        )
        owners = [p for p in nodes(tree) if isinstance(p, NounPhrase) and p.owner]
        if others or owners or not clause.object or any(governors):
            continue
        forms = set()
        # Personal pronouns have no genitive.
        cases = ('nom', 'acc', 'dat', 'gen')
        for case in cases if isinstance(clause.object, NounPhrase) else cases[:3]:
            verb = clause.verb._replace(case=case)
            new = substituted(tree, clause, replace(clause, verb=verb))
            forms |= differing(found, new) or set()
        decided = {d.target for d in found.decisions if d.phenomenon == 'case'}
        assert forms == decided, found.target
        compared += len(decided)
    assert compared > 30


def test_the_perfect_auxiliary_changes_exactly_with_the_verb():
    compared = 0
    for tree in trees(300):
        found = annotate(tree)
        for clause in nodes(tree):
            if not isinstance(clause, Clause) or clause.modal:
                continue
            verb = clause.verb.german
            if clause.tense != 'perfect' and (clause.tense != 'past' or verb.past):
                continue
            auxiliary = 'haben' if verb.auxiliary == 'sein' else 'sein'
            other = clause.verb._replace(german=verb._replace(auxiliary=auxiliary))
            new = substituted(tree, clause, replace(clause, verb=other))
            places = [j for j, w in enumerate(found.target) if w == verb.participle]
            if len(places) == 1:
                decided = decided_by_word(found, places[0], 'perfect auxiliary')
                assert differing(found, new) == decided
                compared += 1
    assert compared > 50
