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
    RelativePronoun,
    Sentence,
    Subordinate,
)
from parallel_grammar.tagged import Unit, Word, decided_by, expression, unit
from parallel_grammar.words import CONJUNCTIONS

_HAVE = inflect_german.verb('haben', 'gehabt', past='hatte')
_BE = inflect_german.verb('sein', 'gewesen', past='war')
_BECOME = inflect_german.verb('werden', 'geworden')
_COMMA = Word(',')


def sentence(tree: Sentence) -> str:
    """Returns the written sentence: 'Der Hund schläft.'"""
    text = ' '.join(words(tree))
    # Each subordinate clause adds a comma before and after it.
    while ' , ,' in text:
        text = text.replace(' , ,', ' ,')
    text = text.replace(' ,', ',').rstrip(',')
    return text[0].upper() + text[1:] + ('?' if tree.mood == 'question' else '.')


def words(tree: Sentence) -> list[Word]:
    """Returns the tagged words in order. Each comma is a word without units."""
    found = []
    for clause, joint in zip(tree.clauses, ('', *tree.joints), strict=True):
        # No comma before 'und', unless a clause ends there.
        comma = [_COMMA] if joint == 'but' else []
        joined = Word(CONJUNCTIONS.get(joint, ''), unit(clause, 'joint'))
        found += [*comma, joined, *_main(clause, tree.mood)]
    if tree.please:
        found.insert(0, Word('bitte', unit(tree, 'please')))
    return [word for word in found if word]


# ---- The verbs -----------------------------------------------------------------------


def _verbs(clause: Clause) -> tuple[Word, list[Word]]:
    """Returns the finite verb and the clause-final rest: ('hat', ['angerufen'])."""
    verb = clause.verb.german
    person = clause.subject.person
    infinitive = verb.prefix + verb.infinitive
    if clause.modal:
        modal = clause.modal.german
        forms = modal.past if clause.tense == 'past' else modal.present
        finite = Word(forms[person], unit(clause, 'modal'))
        rest = _infinite(clause, infinitive, 'modal')
    elif clause.tense == 'future':
        finite = _auxiliary(clause, _BECOME.present[person])
        rest = _infinite(clause, infinitive, 'auxiliary')
    elif clause.tense == 'past' and verb.past:
        finite = _finite(clause, verb.past[person])
        rest = _prefix(clause)
    elif clause.tense in ('past', 'perfect'):
        auxiliary = _BE if verb.auxiliary == 'sein' else _HAVE
        by = [unit(clause, 'verb')]
        finite = _auxiliary(clause, auxiliary.present[person])
        finite = finite.also(deciders=lambda: decided_by('perfect auxiliary', by))
        rest = _infinite(clause, verb.participle, 'auxiliary')
    else:
        finite = _finite(clause, verb.present[person])
        rest = _prefix(clause)
    subject = _subject_units(clause)
    agreeing = finite.also(deciders=lambda: decided_by('verb agreement', subject))
    return agreeing, [rest]


def _subject_units(clause: Clause) -> list[Unit]:
    """Returns the units that decide the person of the verb."""
    subject = clause.subject
    if isinstance(subject, Both):
        return [unit(subject, 'and')]
    if isinstance(subject, NounPhrase | RelativePronoun):
        return [unit(subject.noun)]
    return [unit(subject)]


def _finite(clause: Clause, form: str) -> Word:
    """Returns a full verb without its prefix."""
    units = [unit(clause, 'verb')]
    if not clause.verb.german.prefix:
        units.append(unit(clause, 'prefix'))
    helping = unit(clause, 'auxiliary'), unit(clause, 'link')
    return Word(form, *units, possible=helping)


def _prefix(clause: Clause) -> Word:
    """Returns the separated prefix, or an empty word."""
    verb = unit(clause, 'verb')
    return Word(
        clause.verb.german.prefix,
        unit(clause, 'prefix'),
        deciders=lambda: decided_by('separable prefix', [verb]),
    )


def _auxiliary(clause: Clause, form: str) -> Word:
    auxiliary = unit(clause, 'auxiliary')
    helped = (unit(clause, 'verb'),)
    return Word(form, auxiliary, possible=helped)


def _infinite(clause: Clause, form: str, by: str) -> Word:
    units = [unit(clause, 'verb'), unit(clause, 'prefix')]
    helping = unit(clause, 'auxiliary'), unit(clause, 'link')
    helper = unit(clause, by)
    return Word(
        form,
        *units,
        possible=helping,
        deciders=lambda: decided_by('verb form', [helper]),
    )


def _verbs_last(clause: Clause, by: Unit) -> list[Word]:
    finite, rest = _verbs(clause)
    finite = finite.also(deciders=lambda: decided_by('verb-final order', [by]))
    prefix = clause.verb.german.prefix
    if rest == [prefix]:
        if not prefix:
            return [finite]
        return [finite.also(unit(clause, 'prefix'), text=prefix + finite)]
    return [*rest, finite]


# ---- The middle field ----------------------------------------------------------------


def _objects(clause: Clause) -> dict[str, list[Word]]:
    thing, person = clause.object, clause.recipient
    verb = unit(clause, 'verb')
    parts = {}
    if person:
        parts['recipient'] = phrase(person, 'dat', [verb, unit(clause, 'recipient')])
    if not thing or clause.verb.preposition:
        return parts
    if clause.negative and indefinite(thing):
        determiner, *rest = phrase(negated(thing), clause.verb.case, [verb])
        words = [determiner.also(unit(clause, 'not')), *rest]
    else:
        words = phrase(thing, clause.verb.case, [verb])
    object_ = {'object': words}
    return object_ | parts if isinstance(thing, Pronoun) else parts | object_


def _middle(clause: Clause) -> dict[str, list[Word]]:
    """Returns the middle field: pronouns, time, nouns, not, manner, place, rest."""
    parts = _subject(clause)
    objects = _objects(clause)
    for name, words in objects.items():
        if isinstance(getattr(clause, name), Pronoun):
            parts[name] = words
    if clause.time:
        parts['time'] = expression(clause.time.german, clause.time)
    parts |= objects
    thing = clause.object if 'object' in objects else None
    if clause.negative and not (indefinite(thing) or indefinite(clause.predicate)):
        parts['not'] = [Word('nicht', unit(clause, 'not'))]
    return parts | _adverbials(clause)


def _subject(clause: Clause) -> dict[str, list[Word]]:
    """Returns reflexive and subject; a pronoun subject comes first."""
    subject = []
    if not clause.elided:
        subject = [*phrase(clause.subject, 'nom'), *_relative(clause.subject)]
    if not clause.verb.german.reflexive:
        return {'subject': subject}
    # All nouns take 'sich', in both numbers.
    personal = [unit(clause.subject)] if isinstance(clause.subject, Pronoun) else []
    word = Word(
        reflexive(clause.subject.person),
        possible=(unit(clause, 'verb'),),
        deciders=lambda: decided_by('reflexive', personal),
    )
    own = {'reflexive': [word]}
    if isinstance(clause.subject, NounPhrase | Name | Both):
        return own | {'subject': subject}
    return {'subject': subject} | own


def _adverbials(clause: Clause) -> dict[str, list[Word]]:
    verb, parts = clause.verb, {}
    of_verb = unit(clause, 'verb')
    for name in ('manner', 'companion', 'place'):
        if part := getattr(clause, name):
            parts[name] = adverbial(part, 'dat')
    if verb.preposition and clause.object:
        link = Word(verb.preposition, unit(clause, 'link'), possible=(of_verb,))
        parts['object'] = prepositional(link, clause.object, verb.case, [of_verb])
    if clause.direction:
        parts['direction'] = adverbial(clause.direction, 'acc', [of_verb])
    if clause.predicate:
        words = predicate(clause.predicate, clause.negative)
        if clause.negative and indefinite(clause.predicate):
            words[0] = words[0].also(unit(clause, 'not'))
        parts['predicate'] = words
    return parts


def _relative(nominal: object) -> list[Word]:
    if isinstance(nominal, NounPhrase) and nominal.relative:
        pronoun = unit(nominal.noun, 'relative')
        return [_COMMA, *_last(nominal.relative, pronoun), _COMMA]
    return []


def _after(clause: Clause) -> list[Word]:
    """Returns the words after the clause-final verb: a relative clause, then the tail.

    'Er hat das Buch gekauft, das …' is easier to read than with the verb last. The
    subject's relative clause stays with the subject.
    """
    last = clause.direction or clause.place or clause.companion or clause.object
    described = last.phrase if isinstance(last, Prepositional) else last
    return [*_relative(described), *_tail(clause.tail)]


# ---- Clauses -------------------------------------------------------------------------


def _flat(parts: dict[str, list[Word]]) -> list[Word]:
    return [word for words in parts.values() for word in words]


def _last(clause: Clause, by: Unit) -> list[Word]:
    """Returns a verb-final clause, subordinate or relative.

    Args:
      by: The conjunction or relative pronoun that moves the verb to the end.
    """
    parts = _middle(clause)
    front = [] if clause.front == 'subject' else parts.pop(clause.front)
    return [*front, *_flat(parts), *_verbs_last(clause, by), *_after(clause)]


def _infinitive(clause: Clause) -> list[Word]:
    """Returns 'die Tür aufzumachen', with zu after the prefix."""
    parts = _middle(clause) | {'subject': []}
    verb = clause.verb.german
    to = Word('zu', unit(clause, 'to'))
    infinitive = _infinite(clause, verb.infinitive, 'to')
    zu = [to, infinitive]
    if verb.prefix:
        zu = [infinitive.also(*to.sure, text=verb.prefix + to + infinitive)]
    return [*_flat(parts), *zu, *_after(clause)]


def _tail(part: Subordinate | None) -> list[Word]:
    if not part:
        return []
    if part.conjunction in INFINITIVES:
        purpose = []
        if part.conjunction == 'in order to':
            purpose = [Word('um', unit(part.clause, 'conjunction'))]
        return [_COMMA, *purpose, *_infinitive(part.clause), _COMMA]
    conjunction = CONJUNCTIONS[part.conjunction]
    if part.conjunction == 'when' and part.clause.tense == 'past':
        conjunction = 'als'
    found = Word(conjunction, unit(part.clause, 'conjunction'))
    return [_COMMA, found, *_last(part.clause, *found.sure), _COMMA]


def _main(clause: Clause, mood: str) -> list[Word]:
    """Returns verb second, or first in requests and yes-no questions."""
    parts = _middle(clause)
    finite, rest = _verbs(clause)
    if mood == 'request':
        finite = _finite(clause, clause.verb.german.imperative)
        parts['subject'] = []
        rest = [_prefix(clause)]
    front = _tail(clause.lead)[1:] if clause.lead else parts.pop(clause.front, [])
    return [*front, finite, *_flat(parts), *rest, *_after(clause)]
