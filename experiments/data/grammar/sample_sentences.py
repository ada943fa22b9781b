"""Draws whole sentences: the kinds there are, and how often each comes."""

from dataclasses import replace

from experiments.data.grammar.dice import Dice
from experiments.data.grammar.sample_clauses import clause
from experiments.data.grammar.sample_complex import (
    complement,
    intention,
    joined,
    purpose,
    shared,
    short_clause,
    subordinate,
)
from experiments.data.grammar.sample_questions import question, request, yes_or_no
from experiments.data.grammar.sample_relations import with_relative
from experiments.data.grammar.sample_states import being, there_is, weather
from experiments.data.grammar.syntax import Clause, Sentence, Subordinate

# ---- Statements ---------------------------------------------------------------------------------


def statement(dice: Dice) -> Sentence:
    return Sentence((_with_front(dice, clause(dice)),))


def description(dice: Dice) -> Sentence:
    return Sentence((_with_front(dice, being(dice)),))


def existence(dice: Dice) -> Sentence:
    return Sentence((weather(dice) if dice.chance(0.15) else there_is(dice),))


def described(dice: Dice) -> Sentence:
    """With a relative clause."""
    return Sentence(
        (with_relative(dice, _time_first(clause(dice, extras=dice.chance(0.3)))),)
    )


def _time_first(main: Clause) -> Clause:
    """German then turns verb and subject."""
    return replace(main, front='time') if main.time and not main.time.middle else main


def _with_front(dice: Dice, main: Clause) -> Clause:
    """The clause with its time or its place first, sometimes."""
    if main.time:
        return _time_first(main) if dice.chance(0.5) else main
    required = any(note.endswith('!') for note in main.verb.notes)
    if main.place and not required and dice.chance(0.3):
        return replace(main, front='place')
    return main


# ---- All of them --------------------------------------------------------------------------------

KINDS = {
    statement: 22,
    description: 8,
    existence: 5,
    described: 16,
    yes_or_no: 6,
    question: 9,
    request: 4,
    subordinate: 14,
    complement: 6,
    intention: 4,
    purpose: 3,
    joined: 5,
    shared: 5,
}
_JOINABLE = {
    kind: weight
    for kind, weight in KINDS.items()
    if kind not in (yes_or_no, question, request)
}


def sentence(dice: Dice) -> Sentence:
    """One of any kind."""
    return dice.draw(KINDS)(dice)


def long_sentence(dice: Dice) -> Sentence:
    """Two or three statements joined, with more subordinate clauses inside."""
    parts = [_statement(dice) for _ in range(dice.pick((2, 2, 3)))]
    clauses, joints = parts[0].clauses, parts[0].joints
    for part in parts[1:]:
        clauses += part.clauses
        joints += (dice.pick(('and', 'but')), *part.joints)
    return Sentence(clauses, joints)


def _statement(dice: Dice) -> Sentence:
    made = dice.draw(_JOINABLE)(dice)
    if made.mood != 'statement':
        return _statement(dice)
    *before, last = made.clauses
    return replace(
        made, clauses=(*before, _deepened(dice, last) if dice.chance(0.5) else last)
    )


def _deepened(dice: Dice, main: Clause) -> Clause:
    """With a reason at the end of its last subordinate clause."""
    if main.tail:
        inner = _deepened(dice, main.tail.clause)
        return replace(main, tail=main.tail._replace(clause=inner))
    reason = short_clause(dice, 'past' if main.tense == 'past' else 'present')
    return replace(main, tail=Subordinate(dice.pick(('because', 'although')), reason))
