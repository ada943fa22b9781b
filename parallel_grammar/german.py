"""Renders the clauses of a tree in German; `german_phrases` renders their phrases."""

from parallel_grammar import inflect_german
from parallel_grammar.german_phrases import (
    adverbial,
    indefinite,
    negated,
    phrase,
    predicate,
    prepositional,
    reflexive,
)
from parallel_grammar.syntax import (
    INFINITIVES,
    Both,
    Clause,
    Name,
    NounPhrase,
    Prepositional,
    Pronoun,
    Sentence,
    Subordinate,
)
from parallel_grammar.words import CONJUNCTIONS

_HAVE = inflect_german.verb('haben', 'gehabt', past='hatte')
_BE = inflect_german.verb('sein', 'gewesen', past='war')
_BECOME = inflect_german.verb('werden', 'geworden')


def sentence(tree: Sentence) -> str:
    """Returns the written sentence: 'Der Hund schläft.'"""
    words: list[str] = []
    for clause, joint in zip(tree.clauses, ('', *tree.joints), strict=True):
        # No comma before 'und', unless a clause ends there.
        comma = [','] if joint == 'but' else []
        words += [*comma, CONJUNCTIONS.get(joint, ''), *_main(clause, tree.mood)]
    if tree.please:
        words.insert(0, 'bitte')
    text = ' '.join(filter(None, words))
    # Each subordinate clause adds a comma before and after it.
    while ' , ,' in text:
        text = text.replace(' , ,', ' ,')
    text = text.replace(' ,', ',').rstrip(',')
    return text[0].upper() + text[1:] + ('?' if tree.mood == 'question' else '.')


# ---- The verbs -----------------------------------------------------------------------


def _verbs(clause: Clause) -> tuple[str, list[str]]:
    """Returns the finite verb and the clause-final rest: ('hat', ['angerufen'])."""
    verb = clause.verb.german
    person = clause.subject.person
    infinitive = [verb.prefix + verb.infinitive]
    if clause.modal:
        modal = clause.modal.german
        forms = modal.past if clause.tense == 'past' else modal.present
        return forms[person], infinitive
    if clause.tense == 'future':
        return _BECOME.present[person], infinitive
    if clause.tense == 'past' and verb.past:
        return verb.past[person], [verb.prefix]
    if clause.tense in ('past', 'perfect'):
        auxiliary = _BE if verb.auxiliary == 'sein' else _HAVE
        return auxiliary.present[person], [verb.participle]
    return verb.present[person], [verb.prefix]


def _verbs_last(clause: Clause) -> list[str]:
    finite, rest = _verbs(clause)
    if rest == [clause.verb.german.prefix]:
        return [rest[0] + finite]
    return [*rest, finite]


# ---- The middle field ----------------------------------------------------------------


def _objects(clause: Clause) -> dict[str, list[str]]:
    thing, person = clause.object, clause.recipient
    parts = {'recipient': phrase(person, 'dat')} if person else {}
    if not thing or clause.verb.preposition:
        return parts
    if clause.negative and indefinite(thing):
        thing = negated(thing)
    object_ = {'object': phrase(thing, clause.verb.case)}
    return object_ | parts if isinstance(thing, Pronoun) else parts | object_


def _middle(clause: Clause) -> dict[str, list[str]]:
    """Returns the middle field: pronouns, time, nouns, not, manner, place, rest."""
    parts = _subject(clause)
    objects = _objects(clause)
    for name, words in objects.items():
        if isinstance(getattr(clause, name), Pronoun):
            parts[name] = words
    if clause.time:
        parts['time'] = [clause.time.german]
    parts |= objects
    thing = clause.object if 'object' in objects else None
    if clause.negative and not (indefinite(thing) or indefinite(clause.predicate)):
        parts['not'] = ['nicht']
    return parts | _adverbials(clause)


def _subject(clause: Clause) -> dict[str, list[str]]:
    """Returns reflexive and subject; a pronoun subject comes first."""
    subject = []
    if not clause.elided:
        subject = [*phrase(clause.subject, 'nom'), *_relative(clause.subject)]
    if not clause.verb.german.reflexive:
        return {'subject': subject}
    own = {'reflexive': [reflexive(clause.subject.person)]}
    if isinstance(clause.subject, NounPhrase | Name | Both):
        return own | {'subject': subject}
    return {'subject': subject} | own


def _adverbials(clause: Clause) -> dict[str, list[str]]:
    verb, parts = clause.verb, {}
    for name in ('manner', 'companion', 'place'):
        if part := getattr(clause, name):
            parts[name] = adverbial(part, 'dat')
    if verb.preposition and clause.object:
        parts['object'] = prepositional(verb.preposition, clause.object, verb.case)
    if clause.direction:
        parts['direction'] = adverbial(clause.direction, 'acc')
    if clause.predicate:
        parts['predicate'] = predicate(clause.predicate, clause.negative)
    return parts


def _relative(nominal: object) -> list[str]:
    if isinstance(nominal, NounPhrase) and nominal.relative:
        return [',', *_last(nominal.relative), ',']
    return []


def _after(clause: Clause) -> list[str]:
    """Returns the words after the clause-final verb: a relative clause, then the tail.

    'Er hat das Buch gekauft, das …' is easier to read than with the verb last. The
    subject's relative clause stays with the subject.
    """
    last = clause.direction or clause.place or clause.companion or clause.object
    described = last.phrase if isinstance(last, Prepositional) else last
    return [*_relative(described), *_tail(clause.tail)]


# ---- Clauses -------------------------------------------------------------------------


def _flat(parts: dict[str, list[str]]) -> list[str]:
    return [word for words in parts.values() for word in words]


def _last(clause: Clause) -> list[str]:
    parts = _middle(clause)
    front = [] if clause.front == 'subject' else parts.pop(clause.front)
    return [*front, *_flat(parts), *_verbs_last(clause), *_after(clause)]


def _infinitive(clause: Clause) -> list[str]:
    """Returns 'die Tür aufzumachen', with zu after the prefix."""
    parts = _middle(clause) | {'subject': []}
    verb = clause.verb.german
    zu = ['zu', verb.infinitive]
    if verb.prefix:
        zu = [f'{verb.prefix}zu{verb.infinitive}']
    return [*_flat(parts), *zu, *_after(clause)]


def _tail(part: Subordinate | None) -> list[str]:
    if not part:
        return []
    if part.conjunction in INFINITIVES:
        purpose = ['um'] if part.conjunction == 'in order to' else []
        return [',', *purpose, *_infinitive(part.clause), ',']
    conjunction = CONJUNCTIONS[part.conjunction]
    if part.conjunction == 'when' and part.clause.tense == 'past':
        conjunction = 'als'
    return [',', conjunction, *_last(part.clause), ',']


def _main(clause: Clause, mood: str) -> list[str]:
    """Returns verb second, or first in requests and yes-no questions."""
    parts = _middle(clause)
    finite, rest = _verbs(clause)
    if mood == 'request':
        finite = clause.verb.german.imperative
        parts['subject'] = []
        rest = [clause.verb.german.prefix]
    front = _tail(clause.lead)[1:] if clause.lead else parts.pop(clause.front, [])
    return [*front, finite, *_flat(parts), *rest, *_after(clause)]
