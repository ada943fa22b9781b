"""Samples whole sentences, with a weight for each kind."""

from dataclasses import replace

from parallel_grammar.rng import Rng
from parallel_grammar.sample_clauses import clause
from parallel_grammar.sample_complex import (
    complement,
    intention,
    joined,
    purpose,
    shared,
    short_clause,
    subordinate,
)
from parallel_grammar.sample_questions import question, request, yes_or_no
from parallel_grammar.sample_relations import with_relative
from parallel_grammar.sample_states import being, there_is, weather
from parallel_grammar.syntax import Clause, Sentence, Subordinate

# ---- Statements ----------------------------------------------------------------------


def statement(rng: Rng) -> Sentence:
    return Sentence((_with_front(rng, clause(rng)),))


def description(rng: Rng) -> Sentence:
    return Sentence((_with_front(rng, being(rng)),))


def existence(rng: Rng) -> Sentence:
    return Sentence((weather(rng) if rng.chance(0.15) else there_is(rng),))


def described(rng: Rng) -> Sentence:
    return Sentence(
        (with_relative(rng, _time_first(clause(rng, extras=rng.chance(0.3)))),)
    )


def _time_first(main: Clause) -> Clause:
    return replace(main, front='time') if main.time and not main.time.middle else main


def _with_front(rng: Rng, main: Clause) -> Clause:
    if main.time:
        return _time_first(main) if rng.chance(0.5) else main
    required = any(note.endswith('!') for note in main.verb.notes)
    if main.place and not required and rng.chance(0.3):
        return replace(main, front='place')
    return main


# ---- All sentences -------------------------------------------------------------------

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


def sentence(rng: Rng) -> Sentence:
    return rng.draw(KINDS)(rng)


def long_sentence(rng: Rng) -> Sentence:
    """Samples two or three joined statements with nested subordinate clauses.

    Examples:
      >>> from parallel_grammar import english
      >>> text = english.sentence(long_sentence(Rng(2)))
      >>> text[:54], len(text.split()) > 20
      ('The brother sang a song and wrote it although their pr', True)
    """
    parts = [_statement(rng) for _ in range(rng.pick((2, 2, 3)))]
    clauses, joints = parts[0].clauses, parts[0].joints
    for part in parts[1:]:
        clauses += part.clauses
        joints += (rng.pick(('and', 'but')), *part.joints)
    return Sentence(clauses, joints)


def _statement(rng: Rng) -> Sentence:
    sampled = rng.draw(_JOINABLE)(rng)
    if sampled.mood != 'statement':
        return _statement(rng)
    *before, last = sampled.clauses
    return replace(
        sampled,
        clauses=(*before, _with_nested_clause(rng, last) if rng.chance(0.5) else last),
    )


def _with_nested_clause(rng: Rng, main: Clause) -> Clause:
    if main.tail:
        inner = _with_nested_clause(rng, main.tail.clause)
        return replace(main, tail=main.tail._replace(clause=inner))
    reason = short_clause(rng, 'past' if main.tense == 'past' else 'present')
    return replace(main, tail=Subordinate(rng.pick(('because', 'although')), reason))
