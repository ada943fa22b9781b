"""Tests of alignments and decisions against German grammar, annotated by hand."""

import doctest
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from test_grammar import (
    ANNA,
    HE,
    ME,
    PETER,
    SHE,
    THEY,
    WE,
    at,
    do,
    it,
    its,
    join,
    n,
    say,
    tail,
    that,
)

from parallel_grammar import Gold, Rng, annotate, german, gold, long_sentence, sentence
from parallel_grammar.gold import PHENOMENA, Decision
from parallel_grammar.lexemes import Noun, Verb
from parallel_grammar.syntax import (
    Both,
    Clause,
    NounPhrase,
    RelativePronoun,
    Sentence,
)

# ---- Annotated by hand ---------------------------------------------------------------

# English and German; pairs of words that translate each other; other possible pairs;
# decisions: a German word, the phenomenon, the English and the German words that
# decide. A form is decided only by what changes it: 'alte' is weak before 'der', and
# plural nouns take 'alten', but all genders take 'alte' in the nominative.
ANNOTATED: list[tuple[Sentence | Clause, str, str, str, str, list[tuple]]] = [
    (
        do('the old dog', 'sleep'),
        'The old dog sleeps.',
        'Der alte Hund schläft.',
        'The=Der old=alte dog=Hund sleeps=schläft',
        '',
        [
            ('Der', 'gender', 'dog', 'Hund'),
            ('Der', 'number', 'dog', 'Hund'),
            ('alte', 'number', 'dog', 'Hund'),
            ('alte', 'declension', 'The', 'Der'),
            ('schläft', 'verb agreement', 'dog', 'Hund'),
        ],
    ),
    (
        do(HE, 'help', 'the sick dogs'),
        'He helps the sick dogs.',
        'Er hilft den kranken Hunden.',
        'He=Er helps=hilft the=den sick=kranken dogs=Hunden',
        '',
        [
            ('hilft', 'verb agreement', 'He', 'Er'),
            ('den', 'number', 'dogs', 'Hunden'),
            ('den', 'case', 'helps', 'hilft'),
            ('Hunden', 'case', 'helps', 'hilft'),
        ],
    ),
    (
        do(SHE, 'call', 'the teacher'),
        'She calls the teacher.',
        'Sie ruft den Lehrer an.',
        'She=Sie calls=ruft calls=an the=den teacher=Lehrer',
        '',
        [
            ('ruft', 'verb agreement', 'She', 'Sie'),
            ('den', 'gender', 'teacher', 'Lehrer'),
            ('den', 'number', 'teacher', 'Lehrer'),
            ('den', 'case', 'calls', 'ruft'),
            ('Lehrer', 'case', 'calls', 'ruft'),
            ('an', 'separable prefix', 'calls', 'ruft'),
        ],
    ),
    (
        tail(do(ANNA, 'sleep', negative=True), 'because', do('the women', 'laugh')),
        'Anna does not sleep because the women laugh.',
        'Anna schläft nicht, weil die Frauen lachen.',
        'Anna=Anna not=nicht sleep=schläft because=weil the=die women=Frauen '
        'laugh=lachen',
        'does=schläft',
        [
            ('schläft', 'verb agreement', 'Anna', 'Anna'),
            ('lachen', 'verb agreement', 'women', 'Frauen'),
            ('lachen', 'verb-final order', 'because', 'weil'),
        ],
    ),
    (
        do(
            n('the woman', relative=do(ME, 'help', that('woman'), front='object')),
            'work',
            tense='perfect',
        ),
        'The woman whom I help has worked.',
        'Die Frau, der ich helfe, hat gearbeitet.',
        'The=Die woman=Frau whom=der I=ich help=helfe has=hat worked=gearbeitet',
        'has=gearbeitet worked=hat',
        [
            ('Die', 'gender', 'woman', 'Frau'),
            ('der', 'relative pronoun', 'woman', 'Frau'),
            ('der', 'case', 'help', 'helfe'),
            ('helfe', 'verb agreement', 'I', 'ich'),
            ('helfe', 'verb-final order', 'whom', 'der'),
            ('hat', 'verb agreement', 'woman', 'Frau'),
            ('hat', 'perfect auxiliary', 'worked', 'gearbeitet'),
            ('gearbeitet', 'verb form', 'has', 'hat'),
        ],
    ),
    (
        join(do(ME, 'buy', 'the book'), 'and', do(SHE, 'read', it('book'))),
        'I buy the book, and she reads it.',
        'Ich kaufe das Buch und sie liest es.',
        'I=Ich buy=kaufe the=das book=Buch and=und she=sie reads=liest it=es',
        '',
        [
            ('kaufe', 'verb agreement', 'I', 'Ich'),
            ('das', 'gender', 'book', 'Buch'),
            ('das', 'number', 'book', 'Buch'),
            ('das', 'case', 'buy', 'kaufe'),
            ('Buch', 'case', 'buy', 'kaufe'),
            ('liest', 'verb agreement', 'she', 'sie'),
            ('es', 'case', 'reads', 'liest'),
            ('es', 'pronoun gender', 'book', 'Buch'),
        ],
    ),
    (
        do(n('the dog', owner=n('the king')), 'wait for', 'the children'),
        "The king's dog waits for the children.",
        'Der Hund des Königs wartet auf die Kinder.',
        "The=des king's=Königs dog=Hund waits=wartet for=auf the=die children=Kinder",
        "king's=Der waits=auf for=wartet",
        [
            ('Der', 'gender', 'dog', 'Hund'),
            ('Der', 'number', 'dog', 'Hund'),
            ('des', 'gender', "king's", 'Königs'),
            ('des', 'number', "king's", 'Königs'),
            ('des', 'case', "king's", ''),
            ('Königs', 'case', "king's", ''),
            ('wartet', 'verb agreement', 'dog', 'Hund'),
            ('die', 'number', 'children', 'Kinder'),
            ('die', 'case', 'waits for', 'wartet auf'),
            ('Kinder', 'case', 'waits for', 'wartet auf'),
        ],
    ),
    (
        do(THEY, 'clean', 'the kitchen', modal='have to'),
        'They have to clean the kitchen.',
        'Sie müssen die Küche putzen.',
        'They=Sie have=müssen clean=putzen the=die kitchen=Küche',
        'to=müssen',
        [
            ('müssen', 'verb agreement', 'They', 'Sie'),
            ('die', 'gender', 'kitchen', 'Küche'),
            ('die', 'case', 'clean', 'putzen'),
            ('putzen', 'verb form', 'have', 'müssen'),
        ],
    ),
    (
        say(SHE, 'try', 'to', do(SHE, 'open', 'the door')),
        'She tries to open the door.',
        'Sie versucht, die Tür aufzumachen.',
        'She=Sie tries=versucht to=aufzumachen open=aufzumachen the=die door=Tür',
        '',
        [
            ('versucht', 'verb agreement', 'She', 'Sie'),
            ('die', 'gender', 'door', 'Tür'),
            ('die', 'case', 'open', 'aufzumachen'),
            ('aufzumachen', 'verb form', 'to', ''),
        ],
    ),
    (
        do('the child', 'go', direction=at('into', 'the house'), tense='progressive'),
        'The child is going into the house.',
        'Das Kind geht ins Haus.',
        'The=Das child=Kind going=geht into=ins the=ins house=Haus',
        'is=geht',
        [
            ('Das', 'gender', 'child', 'Kind'),
            ('Das', 'number', 'child', 'Kind'),
            ('geht', 'verb agreement', 'child', 'Kind'),
            ('ins', 'gender', 'house', 'Haus'),
            ('ins', 'number', 'house', 'Haus'),
            ('ins', 'case', 'going into', 'geht'),
            ('Haus', 'case', 'going into', 'geht ins'),
        ],
    ),
    (
        do(WE, 'rest', tense='perfect'),
        'We have rested.',
        'Wir haben uns ausgeruht.',
        'We=Wir have=haben rested=ausgeruht',
        'have=ausgeruht rested=haben rested=uns',
        [
            ('haben', 'verb agreement', 'We', 'Wir'),
            ('haben', 'perfect auxiliary', 'rested', 'ausgeruht'),
            ('uns', 'reflexive', 'We', 'Wir'),
            ('ausgeruht', 'verb form', 'have', 'haben'),
        ],
    ),
    (
        do(Both(PETER, ANNA), 'buy', 'a car', negative=True),
        'Peter and Anna do not buy a car.',
        'Peter und Anna kaufen kein Auto.',
        'Peter=Peter and=und Anna=Anna not=kein buy=kaufen a=kein car=Auto',
        'do=kaufen',
        [
            ('kaufen', 'verb agreement', 'and', 'und'),
            ('kein', 'gender', 'car', 'Auto'),
            ('kein', 'number', 'car', 'Auto'),
            ('kein', 'case', 'buy', 'kaufen'),
            ('Auto', 'case', 'buy', 'kaufen'),
        ],
    ),
    (
        do('the cat', 'lose', its('ball', 'cat')),
        'The cat loses its ball.',
        'Die Katze verliert ihren Ball.',
        'The=Die cat=Katze loses=verliert its=ihren ball=Ball',
        '',
        [
            ('Die', 'gender', 'cat', 'Katze'),
            ('verliert', 'verb agreement', 'cat', 'Katze'),
            ('ihren', 'gender', 'ball', 'Ball'),
            ('ihren', 'number', 'ball', 'Ball'),
            ('ihren', 'case', 'loses', 'verliert'),
            ('ihren', 'pronoun gender', 'cat', 'Katze'),
            ('Ball', 'case', 'loses', 'verliert'),
        ],
    ),
    (
        do('the uncle', 'give back to', 'the key', SHE, tense='past', front='subject'),
        'The uncle gave the key back to her.',
        'Der Onkel hat ihr den Schlüssel zurückgegeben.',
        'The=Der uncle=Onkel gave=zurückgegeben back=zurückgegeben the=den '
        'key=Schlüssel her=ihr',
        'gave=hat',
        [
            ('Der', 'gender', 'uncle', 'Onkel'),
            ('Der', 'number', 'uncle', 'Onkel'),
            ('hat', 'verb agreement', 'uncle', 'Onkel'),
            ('hat', 'perfect auxiliary', 'gave', 'zurückgegeben'),
            ('ihr', 'case', 'gave to', 'zurückgegeben'),
            ('den', 'gender', 'key', 'Schlüssel'),
            ('den', 'number', 'key', 'Schlüssel'),
            ('den', 'case', 'gave', 'zurückgegeben'),
            ('Schlüssel', 'case', 'gave', 'zurückgegeben'),
            ('zurückgegeben', 'verb form', '', 'hat'),
        ],
    ),
]


def plain(text: str) -> tuple[str, ...]:
    return tuple(word.strip('.,?') for word in text.split())


def indices(words: tuple[str, ...], named: str) -> tuple[int, ...]:
    return tuple(words.index(word) for word in named.split())


@pytest.mark.parametrize('row', ANNOTATED, ids=lambda row: row[1])
def test_annotated_by_hand(row):
    tree, source, target, sure, possible, decisions = row
    tree = Sentence((tree,)) if isinstance(tree, Clause) else tree
    found = annotate(tree)
    sources, targets = plain(source), plain(target)

    def pairs(text: str) -> set[tuple[int, int]]:
        both = (pair.split('=') for pair in text.split())
        return {(sources.index(s), targets.index(t)) for s, t in both}

    assert (found.source, found.target) == (sources, targets)
    assert found.sure == pairs(sure)
    assert found.possible == pairs(sure) | pairs(possible)
    expected = {
        Decision(
            targets.index(word), phenomenon, indices(sources, s), indices(targets, t)
        )
        for word, phenomenon, s, t in decisions
    }
    assert set(found.decisions) == expected


def test_the_annotated_sentences_have_every_phenomenon():
    assert {decision[1] for row in ANNOTATED for decision in row[5]} == set(PHENOMENA)


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


def changed(node: Any, old: Any, new: Any) -> Any:
    """Returns the tree with `new` for the object `old`."""
    if node is old:
        return new
    if is_dataclass(node) and not isinstance(node, type):
        parts = {
            field.name: changed(getattr(node, field.name), old, new)
            for field in fields(node)
        }
        return replace(node, **parts)
    if isinstance(node, tuple) and not isinstance(node, Noun | Verb):
        parts = [changed(part, old, new) for part in node]
        return node._make(parts) if hasattr(node, '_make') else tuple(parts)
    return node


def with_number(phrase: NounPhrase, plural: bool) -> NounPhrase:
    """Returns the phrase in a number, with the relative pronouns that refer to it."""
    new = replace(phrase, plural=plural)
    pronoun = RelativePronoun(phrase.noun, phrase.plural)
    of_clause = new.relative and renumbered(new.relative, pronoun, plural)
    return replace(new, relative=of_clause)


def renumbered(node: Any, pronoun: RelativePronoun, plural: bool) -> Any:
    if isinstance(node, RelativePronoun) and node.noun is pronoun.noun:
        return node._replace(plural=plural)
    if is_dataclass(node) and not isinstance(node, type):
        parts = {
            field.name: renumbered(getattr(node, field.name), pronoun, plural)
            for field in fields(node)
        }
        return replace(node, **parts)
    if isinstance(node, tuple) and not isinstance(node, Noun | Verb):
        parts = [renumbered(part, pronoun, plural) for part in node]
        return node._make(parts) if hasattr(node, '_make') else tuple(parts)
    return node


def differing(found: Gold, tree: Sentence) -> set[int] | None:
    """Returns the indices of changed German words; None if their number changed."""
    words = plain(german.sentence(tree))
    if len(words) != len(found.target):
        return None
    return {j for j, word in enumerate(words) if word != found.target[j]}


def decided_by_word(found: Gold, j: int, phenomena: tuple[str, ...]) -> set[int]:
    """Returns the target words that the target word j decides."""
    return {
        d.target
        for d in found.decisions
        if d.phenomenon in phenomena and j in d.targets
    }


NUMBER = ('number', 'relative pronoun', 'verb agreement')


def single_nouns(tree: Sentence, found: Gold):
    """Yields noun phrases with the index of the noun, if it occurs once."""
    for phrase in nodes(tree):
        if isinstance(phrase, NounPhrase):
            forms = {*phrase.noun.german.values()}
            places = [j for j, word in enumerate(found.target) if word in forms]
            if len(places) == 1:
                yield phrase, places[0]


def test_a_form_changes_exactly_with_the_number_of_the_noun_that_decides_it():
    compared = 0
    for tree in trees(600):
        found = annotate(tree)
        for phrase, place in single_nouns(tree, found):
            if phrase.noun.mass or any(c.elided for c in tree.clauses):
                continue
            new = changed(tree, phrase, with_number(phrase, not phrase.plural))
            forms = differing(found, new)
            if forms is None:
                continue
            decided = decided_by_word(found, place, NUMBER)
            # A relative pronoun may change with the gender or the number.
            assert forms - {place} <= decided, (found.target, phrase)
            of_number = decided - decided_by_word(found, place, ('relative pronoun',))
            assert of_number <= forms, (found.target, phrase)
            compared += len(decided)
    assert compared > 500


def test_a_form_changes_exactly_with_the_gender_of_the_noun_that_decides_it():
    compared = 0
    for tree in trees(600):
        found = annotate(tree)
        for phrase, place in single_nouns(tree, found):
            genders = [phrase.noun._replace(gender=gender) for gender in 'mfn']
            by_gender = [
                differing(found, changed(tree, phrase.noun, noun)) for noun in genders
            ]
            if None in by_gender:
                continue
            forms = set().union(*filter(None, by_gender))
            decided = decided_by_word(found, place, ('gender',))
            relative = decided_by_word(found, place, ('relative pronoun',))
            assert decided <= forms <= decided | relative, (found.target, phrase)
            compared += len(decided)
    assert compared > 500


def test_a_form_changes_exactly_with_the_case_that_the_verb_governs():
    compared = 0
    for tree in trees(600):
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
            new = changed(tree, clause, replace(clause, verb=verb))
            forms |= differing(found, new) or set()
        decided = {d.target for d in found.decisions if d.phenomenon == 'case'}
        assert forms == decided, found.target
        compared += len(decided)
    assert compared > 50


def test_the_perfect_auxiliary_changes_exactly_with_the_verb():
    compared = 0
    for tree in trees(300):
        found = annotate(tree)
        for clause in nodes(tree):
            if not isinstance(clause, Clause) or clause.modal:
                continue
            preterite = clause.verb.german.past
            if clause.tense != 'perfect' and (clause.tense != 'past' or preterite):
                continue
            other = 'haben' if clause.verb.german.auxiliary == 'sein' else 'sein'
            verb = clause.verb._replace(
                german=clause.verb.german._replace(auxiliary=other)
            )
            new = changed(tree, clause, replace(clause, verb=verb))
            forms = differing(found, new)
            places = [
                j for j, w in enumerate(found.target) if w == verb.german.participle
            ]
            if len(places) == 1:
                decided = decided_by_word(found, places[0], ('perfect auxiliary',))
                assert forms == decided
                compared += 1
    assert compared > 50


def test_the_example_runs():
    results = doctest.testmod(gold)
    assert results.attempted == 5 and not results.failed
