"""Draws questions and requests."""

from dataclasses import replace

from experiments.data.grammar.dice import Dice
from experiments.data.grammar.lexemes import Adverb, Noun, Verb
from experiments.data.grammar.lexicon import DETERMINERS, DIRECTIONS, PLACES
from experiments.data.grammar.sample_clauses import ACTIONS, ALL_VERBS, clause
from experiments.data.grammar.sample_phrases import is_none, noun_phrase
from experiments.data.grammar.sample_relations import (
    HUMAN_VERBS,
    RECIPIENT_VERBS,
    infinitive,
)
from experiments.data.grammar.sample_states import being
from experiments.data.grammar.syntax import (
    PERSONS,
    Clause,
    Interrogative,
    NounPhrase,
    Pronoun,
    Sentence,
)


def _with_notes(notes: set[str]) -> list[Verb]:
    return [v for v in ALL_VERBS if notes & {note.rstrip('!') for note in v.notes}]


# Not 'What does he know?', where German would say 'wissen'.
_TRANSITIVE = [v for v in ALL_VERBS if v.objects and v.english.base != 'know']
_PLACED = _with_notes(set(PLACES))
_DIRECTED = _with_notes(set(DIRECTIONS) - {'whence'})
_MANNERED = _with_notes({'speed', 'care', 'how'})


def yes_or_no(dice: Dice) -> Sentence:
    asked = being(dice) if dice.chance(0.25) else clause(dice, plain=True)
    if is_none(asked.subject):
        return yes_or_no(dice)
    return Sentence((replace(asked, negative=False, front='verb'),), mood='question')


def question(dice: Dice) -> Sentence:
    """With a question word."""
    kinds = {
        _who: 22,
        _whom_or_what: 26,
        _to_whom: 8,
        _where: 20,
        _when_or_why: 18,
        _how: 6,
    }
    return Sentence((dice.draw(kinds)(dice),), mood='question')


def _who(dice: Dice) -> Clause:
    if dice.chance(0.5):
        return clause(
            dice, HUMAN_VERBS, Interrogative(True), plain=True, negative=False
        )
    verb = dice.pick(ALL_VERBS)
    return clause(dice, [verb], _which(dice, verb.subjects), plain=True, negative=False)


def _which(dice: Dice, nouns: tuple[Noun, ...]) -> NounPhrase:
    """'which dog', 'how many dogs'."""
    phrase = replace(noun_phrase(dice, nouns), owner=None)
    word = 'how many' if phrase.plural and dice.chance(0.5) else 'which'
    return replace(phrase, determiner=DETERMINERS[word])


def _whom_or_what(dice: Dice) -> Clause:
    """'What' and 'whom' where German has 'was' and 'wen', else 'which': not 'worauf'."""
    verb = dice.pick(_TRANSITIVE)
    noun = dice.pick(verb.objects)
    human = noun.kind in PERSONS
    simple = human or (verb.case == 'acc' and not verb.preposition)
    thing = (
        Interrogative(human) if simple and dice.chance(0.6) else _which(dice, (noun,))
    )
    return clause(
        dice, [verb], plain=True, negative=False, object=thing, front='object'
    )


def _to_whom(dice: Dice) -> Clause:
    whom = Interrogative(True)
    given = {'recipient': whom, 'front': 'recipient', 'negative': False}
    return clause(dice, RECIPIENT_VERBS, plain=True, **given)


def _where(dice: Dice) -> Clause:
    """German asks for a place and for a direction with different words; the verb tells which."""
    if dice.chance(0.6):
        given = {'place': Adverb('where', 'wo'), 'front': 'place'}
        return clause(dice, _PLACED, extras=False, plain=True, negative=False, **given)
    given = {'direction': Adverb('where', 'wohin'), 'front': 'direction'}
    return clause(dice, _DIRECTED, extras=False, plain=True, negative=False, **given)


def _when_or_why(dice: Dice) -> Clause:
    word = dice.pick((Adverb('when', 'wann'), Adverb('why', 'warum')))
    tense = dice.pick(('present', 'past'))
    asked = clause(dice, ACTIONS, None, tense, plain=True, time=word, front='time')
    return asked if word.english == 'why' else replace(asked, negative=False)


def _how(dice: Dice) -> Clause:
    given = {'manner': Adverb('how', 'wie'), 'front': 'manner', 'negative': False}
    return clause(dice, _MANNERED, extras=False, plain=True, **given)


def request(dice: Dice) -> Sentence:
    asked = infinitive(dice, Pronoun('you'))
    asked = replace(asked, negative=dice.chance(0.25))
    return Sentence((asked,), mood='request', please=dice.chance(0.4))
