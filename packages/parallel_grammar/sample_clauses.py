"""Samples clauses: a verb and the parts that its table entry allows."""

from collections.abc import Sequence
from typing import Any

from parallel_grammar.lexemes import Adverb, Verb
from parallel_grammar.lexicon import (
    DIRECTIONS,
    MANNERS,
    MODALS,
    PLACES,
    PREPOSITIONS,
    VERBS,
)
from parallel_grammar.rng import Rng
from parallel_grammar.sample_phrases import (
    PEOPLE,
    is_none,
    noun_phrase,
    other,
    place_in,
    subject_of,
    time_for,
)
from parallel_grammar.syntax import Clause, Nominal, Prepositional, Pronoun

ALL_VERBS = tuple(VERBS.values())
ACTIONS = [
    v for v in ALL_VERBS if 'state' not in v.notes
]  # actions that may follow 'while' and 'before'

_TENSES = {
    'present': 24,
    'progressive': 17,
    'past': 27,
    'perfect': 8,
    'future': 10,
    'modal': 14,
}
_STATE_TENSES = {'present': 65, 'past': 35}
_ADJUNCTS = {*PLACES, *DIRECTIONS, *MANNERS, 'with', 'for'}


def clause(
    rng: Rng,
    verbs: Sequence[Verb] = ALL_VERBS,
    subject: Nominal | None = None,
    tense: str = '',
    extras: bool = True,
    plain: bool = False,
    **fixed: Any,
) -> Clause:
    """Samples a clause with one of the verbs; `fixed` sets some of its parts.

    `tense` is 'present' or 'past' if the sentence determines it. `extras` allows
    optional parts. `plain` excludes determiners that don't fit negation or questions.
    """
    verb = rng.pick(verbs)
    if tense == 'past' and not has_past(verb):
        verb = rng.pick([v for v in verbs if has_past(v)])
    parts: dict[str, Any] = {'negative': rng.chance(0.12)}
    parts |= _tense(rng, verb, tense) | fixed
    plain = plain or parts['negative']
    subject = subject or subject_of(rng, verb, 'plain' if plain else 'any')
    determiners = 'plain' if plain or is_none(subject) else 'any'
    parts = _objects(rng, verb, subject, determiners) | parts
    parts = _adjuncts(rng, verb, subject, extras) | parts
    if extras and rng.chance(0.36):
        parts = {'time': _time(rng, verb, parts)} | parts
    return Clause(subject, verb, **parts)


def _objects(
    rng: Rng, verb: Verb, subject: Nominal, determiners: str
) -> dict[str, Any]:
    """Samples object and recipient; verbs marked 'alone' may lack an object."""
    if not verb.objects or ('alone' in verb.notes and rng.chance(0.2)):
        return {}
    if not verb.recipient:
        return {'object': other(rng, verb.objects, subject, determiners)}
    recipient = other(rng, PEOPLE, subject, 'definite')
    if rng.chance(0.08):
        return {'object': Pronoun('they'), 'recipient': recipient}
    if isinstance(recipient, Pronoun):  # 'shows her dogs' is ambiguous
        determiners = 'definite'
    return {
        'object': noun_phrase(rng, verb.objects, determiners),
        'recipient': recipient,
    }


def _adjuncts(rng: Rng, verb: Verb, subject: Nominal, extras: bool) -> dict[str, Any]:
    chosen = [note[:-1] for note in verb.notes if note.endswith('!')]
    optional = [note for note in verb.notes if note in _ADJUNCTS]
    if extras and optional and rng.chance(0.5):
        chosen.append(rng.pick(optional))
    return dict(_adjunct(rng, name, subject) for name in chosen)


def _adjunct(
    rng: Rng, name: str, subject: Nominal
) -> tuple[str, Adverb | Prepositional]:
    if name in MANNERS:
        return 'manner', rng.pick(MANNERS[name])
    if name in PLACES:
        return 'place', place_in(rng, PLACES[name], subject)
    if name in DIRECTIONS:
        return 'direction', place_in(rng, DIRECTIONS[name], subject)
    return 'companion', Prepositional(
        PREPOSITIONS[name], other(rng, PEOPLE, subject, 'definite')
    )


def has_past(verb: Verb) -> bool:
    """Returns False for 'read' or 'put', which use the perfect: past equals present.

    Examples:
      >>> from parallel_grammar.lexicon import VERBS
      >>> has_past(VERBS['read']), has_past(VERBS['buy'])
      (False, True)
    """
    return verb.english.past[0] != verb.english.base


def _tense(rng: Rng, verb: Verb, given: str) -> dict[str, Any]:
    if 'state' in verb.notes:
        return {'tense': given or rng.draw(_STATE_TENSES)}
    tense = given or rng.draw(_TENSES)
    if tense == 'modal' or (given and rng.chance(0.1)):
        tense = given or rng.draw(_STATE_TENSES)
        if 'chance' not in verb.notes:
            # Not 'when he should' and 'if he would like to', which have another
            # meaning.
            always = tense == 'present' and not given
            modals = [m for m in MODALS.values() if always or m.german.past]
            return {'tense': tense, 'modal': rng.pick(modals)}
    return {'tense': 'perfect' if tense == 'past' and not has_past(verb) else tense}


def _time(rng: Rng, verb: Verb, parts: dict[str, Any]) -> Adverb | None:
    """Samples a time, except for states; but past states such as 'saw' may have one."""
    tense, modal = parts['tense'], parts.get('modal')
    if 'state' in verb.notes and (tense != 'past' or verb.german.past):
        return None
    often = tense in ('present', 'past') and not modal and not parts['negative']
    return time_for(rng, 'future' if modal and tense == 'present' else tense, often)
