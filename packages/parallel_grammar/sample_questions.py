"""Samples questions and requests."""

from dataclasses import replace

from parallel_grammar.lexemes import Adverb, Noun, Verb
from parallel_grammar.lexicon import DETERMINERS, DIRECTIONS, PLACES
from parallel_grammar.rng import Rng
from parallel_grammar.sample_clauses import ACTIONS, ALL_VERBS, clause
from parallel_grammar.sample_phrases import is_none, noun_phrase
from parallel_grammar.sample_relations import (
    HUMAN_VERBS,
    RECIPIENT_VERBS,
    infinitive,
)
from parallel_grammar.sample_states import being
from parallel_grammar.syntax import (
    PERSONS,
    Clause,
    Interrogative,
    NounPhrase,
    Pronoun,
    Sentence,
)


def _with_notes(notes: set[str]) -> list[Verb]:
    return [v for v in ALL_VERBS if notes & {note.rstrip('!') for note in v.notes}]


# Exclude 'What does he know?', for which German uses 'wissen'.
_TRANSITIVE = [v for v in ALL_VERBS if v.objects and v.english.base != 'know']
_PLACED = _with_notes(set(PLACES))
_DIRECTED = _with_notes(set(DIRECTIONS) - {'whence'})
_MANNERED = _with_notes({'speed', 'care', 'how'})


def yes_or_no(rng: Rng) -> Sentence:
    question = being(rng) if rng.chance(0.25) else clause(rng, plain=True)
    if is_none(question.subject):
        return yes_or_no(rng)
    return Sentence((replace(question, negative=False, front='verb'),), mood='question')


def question(rng: Rng) -> Sentence:
    kinds = {
        _who_question: 22,
        _object_question: 26,
        _recipient_question: 8,
        _place_question: 20,
        _time_question: 18,
        _manner_question: 6,
    }
    return Sentence((rng.draw(kinds)(rng),), mood='question')


def _who_question(rng: Rng) -> Clause:
    if rng.chance(0.5):
        return clause(rng, HUMAN_VERBS, Interrogative(True), plain=True, negative=False)
    verb = rng.pick(ALL_VERBS)
    return clause(
        rng, [verb], _which_phrase(rng, verb.subjects), plain=True, negative=False
    )


def _which_phrase(rng: Rng, nouns: tuple[Noun, ...]) -> NounPhrase:
    phrase = replace(noun_phrase(rng, nouns), owner=None)
    word = 'how many' if phrase.plural and rng.chance(0.5) else 'which'
    return replace(phrase, determiner=DETERMINERS[word])


def _object_question(rng: Rng) -> Clause:
    """Samples 'what' or 'whom' if German has 'was' or 'wen', else 'which'."""
    verb = rng.pick(_TRANSITIVE)
    noun = rng.pick(verb.objects)
    human = noun.kind in PERSONS
    simple = human or (verb.case == 'acc' and not verb.preposition)
    thing = (
        Interrogative(human)
        if simple and rng.chance(0.6)
        else _which_phrase(rng, (noun,))
    )
    return clause(rng, [verb], plain=True, negative=False, object=thing, front='object')


def _recipient_question(rng: Rng) -> Clause:
    whom = Interrogative(True)
    given = {'recipient': whom, 'front': 'recipient', 'negative': False}
    return clause(rng, RECIPIENT_VERBS, plain=True, **given)


def _place_question(rng: Rng) -> Clause:
    if rng.chance(0.6):
        given = {'place': Adverb('where', 'wo'), 'front': 'place'}
        return clause(rng, _PLACED, extras=False, plain=True, negative=False, **given)
    given = {'direction': Adverb('where', 'wohin'), 'front': 'direction'}
    return clause(rng, _DIRECTED, extras=False, plain=True, negative=False, **given)


def _time_question(rng: Rng) -> Clause:
    word = rng.pick((Adverb('when', 'wann'), Adverb('why', 'warum')))
    tense = rng.pick(('present', 'past'))
    question = clause(rng, ACTIONS, None, tense, plain=True, time=word, front='time')
    return question if word.english == 'why' else replace(question, negative=False)


def _manner_question(rng: Rng) -> Clause:
    given = {'manner': Adverb('how', 'wie'), 'front': 'manner', 'negative': False}
    return clause(rng, _MANNERED, extras=False, plain=True, **given)


def request(rng: Rng) -> Sentence:
    main = infinitive(rng, Pronoun('you'))
    main = replace(main, negative=rng.chance(0.25))
    return Sentence((main,), mood='request', please=rng.chance(0.4))
