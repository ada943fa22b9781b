"""Samples sentences of two clauses."""

from dataclasses import replace

from parallel_grammar.lexicon import BE, CLAUSE_VERBS, VERBS
from parallel_grammar.rng import Rng
from parallel_grammar.sample_clauses import ACTIONS, clause
from parallel_grammar.sample_phrases import subject_of
from parallel_grammar.sample_relations import (
    HUMAN_VERBS,
    about,
    antecedents,
    done_to,
    infinitive,
    pronoun_for,
)
from parallel_grammar.sample_states import being, weather
from parallel_grammar.syntax import Clause, Sentence, Subordinate

_PURPOSES = (
    'go, come, drive, travel, run, hurry, get up, come back, stay, wait, '
    'call, visit, buy, order, look for, turn on, help, listen to'
)
_PURPOSEFUL = [VERBS[name] for name in _PURPOSES.split(', ')]


def short_clause(rng: Rng, tense: str, lasting: bool = False) -> Clause:
    """Samples a short clause, so that pronouns in the next one are unambiguous."""
    if lasting:
        return clause(
            rng, ACTIONS, None, tense, extras=False, negative=False, modal=None
        )
    if rng.chance(0.12):
        return being(rng, tense=tense)
    return clause(rng, tense=tense, extras=False)


def _second_clause(
    rng: Rng, first: Clause, tense: str, lasting: bool = False
) -> Clause:
    related = about(rng, first, tense) if rng.chance(0.6) else None
    if related and not (
        lasting and (related.negative or related.modal or related.verb not in ACTIONS)
    ):
        return related
    if not lasting and rng.chance(0.1):
        return weather(rng, tense)
    return short_clause(rng, tense, lasting)


def subordinate(rng: Rng) -> Sentence:
    kinds = {
        'because': 30,
        'although': 16,
        'if': 14,
        'when': 18,
        'while': 10,
        'before': 12,
    }
    conjunction = rng.draw(kinds)
    lasting = conjunction in ('while', 'before')
    tense = 'present' if conjunction == 'if' else rng.pick(('present', 'past'))
    first = short_clause(rng, tense, lasting)
    second = _second_clause(rng, first, tense, lasting)
    if rng.chance(0.4):
        return Sentence((replace(second, lead=Subordinate(conjunction, first)),))
    return Sentence((replace(first, tail=Subordinate(conjunction, second)),))


def complement(rng: Rng) -> Sentence:
    """Samples 'says that …', 'asks whether …' or 'Do you know whether …?'."""
    conjunction = rng.draw({'that': 70, 'whether': 30})
    verb = rng.pick([v for v in CLAUSE_VERBS.values() if conjunction in v.notes])
    subject = subject_of(rng, verb, 'plain')
    main = Clause(subject, verb, rng.draw({'present': 60, 'past': 40}))
    # 'Does not know whether …'.
    can_be_asked = conjunction == 'whether' and 'that' in verb.notes
    is_question = can_be_asked and rng.chance(0.5)
    if can_be_asked or (conjunction == 'that' and rng.chance(0.12)):
        main = replace(
            main, negative=not is_question, front='verb' if is_question else 'subject'
        )
    content = _content_clause(rng, main)
    main = replace(main, tail=Subordinate(conjunction, content))
    return Sentence((main,), mood='question' if is_question else 'statement')


def _content_clause(rng: Rng, main: Clause) -> Clause:
    """Samples a 'that' clause; past after past, which is always correct."""
    tense = 'past' if main.tense == 'past' else ''
    related = about(rng, main, tense or 'present') if rng.chance(0.3) else None
    if related or rng.chance(0.25):
        return related or being(rng, tense=tense)
    return clause(rng, tense=tense, extras=rng.chance(0.5))


def intention(rng: Rng) -> Sentence:
    verb = rng.pick([v for v in CLAUSE_VERBS.values() if 'to' in v.notes])
    subject = subject_of(rng, verb, 'plain')
    tense = rng.draw({'present': 40, 'past': 45, 'perfect': 8, 'future': 7})
    if 'state' in verb.notes:
        tense = rng.pick(('present', 'past'))
    what = infinitive(rng, subject)
    while not _is_extended(what):
        what = infinitive(rng, subject)
    tail = Subordinate('to', what)
    main = Clause(subject, verb, tense, negative=rng.chance(0.1), tail=tail)
    return Sentence((main,))


def _is_extended(what: Clause) -> bool:
    """Returns whether German requires a comma, unlike before a bare 'to dance'."""
    parts = (what.object, what.place, what.direction, what.manner, what.companion)
    return any(parts) or what.verb.german.reflexive


def purpose(rng: Rng) -> Sentence:
    subject = subject_of(rng, BE)
    tense = rng.pick(('present', 'past'))
    main = clause(rng, _PURPOSEFUL, subject, tense, extras=False, negative=False)
    tail = Subordinate('in order to', infinitive(rng, subject))
    return Sentence((replace(main, tail=tail),))


def joined(rng: Rng) -> Sentence:
    tense = rng.pick(('present', 'past'))
    first = short_clause(rng, tense)
    second = _second_clause(rng, first, tense)
    return Sentence((first, second), (rng.draw({'and': 60, 'but': 40}),))


def shared(rng: Rng) -> Sentence:
    """Samples two clauses with one subject: 'buys the cake and eats it'."""
    subject = subject_of(rng, BE, 'plain')
    tense = rng.draw({'present': 40, 'past': 45, 'future': 15})
    given = {'extras': False, 'plain': True, 'negative': False, 'modal': None}
    first = clause(rng, HUMAN_VERBS, subject, tense, **given)
    rest = [a for a in antecedents(first) if a.pronoun != pronoun_for(subject)]
    joint = 'but' if rng.chance(0.3) else 'and'
    given['negative'] = joint == 'but'
    # Not 'turns on the lamp and has it'.
    fitting = done_to(rest[0], first.verb, tense) if rest else []
    fitting = [v for v in fitting if 'state' not in v.notes]
    if fitting and rng.chance(0.8):
        given['object'] = rest[0].pronoun
    verbs = fitting if 'object' in given else [v for v in ACTIONS if v in HUMAN_VERBS]
    second = clause(rng, verbs, subject, tense, elided=True, **given)
    return Sentence((first, second), (joint,))
