"""Draws sentences of two clauses."""

from dataclasses import replace

from experiments.data.grammar.dice import Dice
from experiments.data.grammar.lexicon import BE, CLAUSE_VERBS, VERBS
from experiments.data.grammar.sample_clauses import ACTIONS, clause
from experiments.data.grammar.sample_phrases import subject_of
from experiments.data.grammar.sample_relations import (
    HUMAN_VERBS,
    about,
    antecedents,
    done_to,
    infinitive,
    pronoun_for,
)
from experiments.data.grammar.sample_states import being, weather
from experiments.data.grammar.syntax import Clause, Sentence, Subordinate

_PURPOSEFUL = [
    VERBS[name]
    for name in (
        *(
            'go',
            'come',
            'drive',
            'travel',
            'run',
            'hurry',
            'get up',
            'come back',
            'stay',
            'wait',
        ),
        *('call', 'visit', 'buy', 'order', 'look for', 'turn on', 'help', 'listen to'),
    )
]


def short_clause(dice: Dice, tense: str, lasting: bool = False) -> Clause:
    """A short clause, so that a pronoun can speak on of what it names."""
    if lasting:
        return clause(
            dice, ACTIONS, None, tense, extras=False, negative=False, modal=None
        )
    if dice.chance(0.12):
        return being(dice, tense=tense)
    return clause(dice, tense=tense, extras=False)


def _second_clause(
    dice: Dice, first: Clause, tense: str, lasting: bool = False
) -> Clause:
    made = about(dice, first, tense) if dice.chance(0.6) else None
    if made and not (
        lasting and (made.negative or made.modal or made.verb not in ACTIONS)
    ):
        return made
    if not lasting and dice.chance(0.1):
        return weather(dice, tense)
    return short_clause(dice, tense, lasting)


def subordinate(dice: Dice) -> Sentence:
    """'…, because …', or the other way round: 'When …, …'."""
    kinds = {
        'because': 30,
        'although': 16,
        'if': 14,
        'when': 18,
        'while': 10,
        'before': 12,
    }
    conjunction = dice.draw(kinds)
    lasting = conjunction in ('while', 'before')
    tense = 'present' if conjunction == 'if' else dice.pick(('present', 'past'))
    first = short_clause(dice, tense, lasting)
    second = _second_clause(dice, first, tense, lasting)
    if dice.chance(0.4):
        return Sentence((replace(second, lead=Subordinate(conjunction, first)),))
    return Sentence((replace(first, tail=Subordinate(conjunction, second)),))


def complement(dice: Dice) -> Sentence:
    """'says that …', 'asks whether …', 'Do you know whether …?'"""
    conjunction = dice.draw({'that': 70, 'whether': 30})
    verb = dice.pick([v for v in CLAUSE_VERBS.values() if conjunction in v.notes])
    main = Clause(
        subject_of(dice, verb, 'plain'), verb, dice.draw({'present': 60, 'past': 40})
    )
    doubtful = (
        conjunction == 'whether' and 'that' in verb.notes
    )  # one does not know whether …
    asked = doubtful and dice.chance(0.5)
    if doubtful or (conjunction == 'that' and dice.chance(0.12)):
        main = replace(main, negative=not asked, front='verb' if asked else 'subject')
    said = _said(dice, main)
    main = replace(main, tail=Subordinate(conjunction, said))
    return Sentence((main,), mood='question' if asked else 'statement')


def _said(dice: Dice, main: Clause) -> Clause:
    """Somebody who thinks of the past thinks in the past: that is always right in English."""
    tense = 'past' if main.tense == 'past' else ''
    made = about(dice, main, tense or 'present') if dice.chance(0.3) else None
    if made or dice.chance(0.25):
        return made or being(dice, tense=tense)
    return clause(dice, tense=tense, extras=dice.chance(0.5))


def intention(dice: Dice) -> Sentence:
    """'tries to …'"""
    verb = dice.pick([v for v in CLAUSE_VERBS.values() if 'to' in v.notes])
    subject = subject_of(dice, verb, 'plain')
    tense = dice.draw({'present': 40, 'past': 45, 'perfect': 8, 'future': 7})
    if 'state' in verb.notes:
        tense = dice.pick(('present', 'past'))
    what = infinitive(dice, subject)
    while not _is_extended(what):
        what = infinitive(dice, subject)
    tail = Subordinate('to', what)
    return Sentence(
        (Clause(subject, verb, tense, negative=dice.chance(0.1), tail=tail),)
    )


def _is_extended(what: Clause) -> bool:
    """More than 'to dance', before which a German comma is a matter of taste."""
    parts = (what.object, what.place, what.direction, what.manner, what.companion)
    return any(parts) or what.verb.german.reflexive


def purpose(dice: Dice) -> Sentence:
    """'… in order to …'"""
    subject = subject_of(dice, BE)
    tense = dice.pick(('present', 'past'))
    main = clause(dice, _PURPOSEFUL, subject, tense, extras=False, negative=False)
    tail = Subordinate('in order to', infinitive(dice, subject))
    return Sentence((replace(main, tail=tail),))


def joined(dice: Dice) -> Sentence:
    """Two main clauses: '…, and …'."""
    tense = dice.pick(('present', 'past'))
    first = short_clause(dice, tense)
    second = _second_clause(dice, first, tense)
    return Sentence((first, second), (dice.draw({'and': 60, 'but': 40}),))


def shared(dice: Dice) -> Sentence:
    """Two clauses with one subject: 'buys the cake and eats it', 'but does not eat it'."""
    subject = subject_of(dice, BE, 'plain')
    tense = dice.draw({'present': 40, 'past': 45, 'future': 15})
    given = {'extras': False, 'plain': True, 'negative': False, 'modal': None}
    first = clause(dice, HUMAN_VERBS, subject, tense, **given)
    rest = [a for a in antecedents(first) if a.pronoun != pronoun_for(subject)]
    joint = 'but' if dice.chance(0.3) else 'and'
    given['negative'] = joint == 'but'
    # Not 'turns on the lamp and has it'.
    fitting = done_to(rest[0], first.verb, tense) if rest else []
    fitting = [v for v in fitting if 'state' not in v.notes]
    if fitting and dice.chance(0.8):
        given['object'] = rest[0].pronoun
    verbs = fitting if 'object' in given else [v for v in ACTIONS if v in HUMAN_VERBS]
    second = clause(dice, verbs, subject, tense, elided=True, **given)
    return Sentence((first, second), (joint,))
