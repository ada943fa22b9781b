"""Samples clauses of description, existence and weather."""

from dataclasses import replace

from parallel_grammar.lexemes import Adjective, Adverb, Noun
from parallel_grammar.lexicon import (
    BE,
    DETERMINERS,
    NOUNS,
    PLACES,
    THERE_BE,
    WEATHER,
    nouns_of,
)
from parallel_grammar.rng import Rng
from parallel_grammar.sample_phrases import (
    DESCRIBING,
    may_be_negated,
    noun_of,
    noun_phrase,
    other,
    place_in,
    subject_of,
    time_for,
)
from parallel_grammar.syntax import (
    PERSONS,
    THIRD,
    Clause,
    Comparison,
    Expletive,
    Nominal,
    NounPhrase,
)

_BE_TENSES = {'present': 58, 'past': 34, 'future': 8}
_DESCRIBABLE_NOUNS = [noun for noun in NOUNS.values() if DESCRIBING[noun.english]]
_SAME_KIND = {
    noun.english: [n for n in NOUNS.values() if n.kind == noun.kind and n is not noun]
    for noun in NOUNS.values()
}
_MOODS = ('tired', 'happy', 'sad', 'sick', 'nervous', 'angry', 'hungry', 'thirsty')
_WORKERS = {
    'man': nouns_of('teacher doctor painter singer student lawyer baker waiter'),
    'woman': nouns_of('nurse saleswoman waitress princess queen'),
}


def being(
    rng: Rng,
    subject: Nominal | None = None,
    noun: Noun | None = None,
    tense: str = '',
) -> Clause:
    subject = subject or _described(rng)
    noun = noun or noun_of(subject)
    negative = may_be_negated(subject) and rng.chance(0.15)
    kind = rng.draw({'adjective': 68, 'comparison': 22, 'worker': 10})
    adjective = rng.pick(DESCRIBING[noun.english])
    predicate = None
    if kind == 'comparison':
        predicate = _comparison(rng, adjective, subject, noun)
    elif kind == 'worker':
        predicate = _worker(rng, subject)
    if isinstance(subject, NounPhrase) and (
        not predicate or subject.adjective is adjective
    ):
        subject = replace(subject, adjective=None)  # 'the green shirt is red'
    tense = tense or rng.draw(_BE_TENSES)
    time = None
    if not predicate and adjective.english in _MOODS and rng.chance(0.4):
        time = time_for(rng, tense, often=tense != 'future' and not negative)
    return Clause(
        subject,
        BE,
        tense,
        negative=negative,
        predicate=predicate or adjective,
        time=time,
    )


def _described(rng: Rng) -> Nominal:
    subject = noun_phrase(rng, _DESCRIBABLE_NOUNS)
    return subject_of(rng, BE) if subject.noun.kind in PERSONS else subject


def _comparison(
    rng: Rng, adjective: Adjective, subject: Nominal, noun: Noun
) -> Comparison | None:
    alike = [n for n in _SAME_KIND[noun.english] if n.english in adjective.kinds]
    if not adjective.english_more or not alike:
        return None
    return Comparison(
        adjective, other(rng, alike, subject, 'definite'), rng.chance(0.35)
    )


def _worker(rng: Rng, subject: Nominal) -> NounPhrase | None:
    """Samples 'a good doctor'; the German word depends on the person's sex."""
    noun = noun_of(subject)
    if subject.person != THIRD or noun.kind not in _WORKERS:
        return None
    worker = rng.pick([worker for worker in _WORKERS[noun.kind] if worker is not noun])
    return NounPhrase(
        worker, DETERMINERS['a'], adjective=rng.pick(DESCRIBING[worker.english])
    )


# ---- Existence and weather -----------------------------------------------------------

_VISIBLE_NOUNS = nouns_of('person animal goods plant food')
_SINGULAR_DETERMINERS = {'a': 75, 'no': 25}
_PLURAL_DETERMINERS = {
    '': 25,
    'many': 25,
    'some': 20,
    'two': 8,
    'three': 8,
    'five': 8,
    'no': 12,
}
_MASS_DETERMINERS = {'': 65, 'no': 35}
_NEARBY_PLACES = PLACES['near']
_SITES = [place for place in PLACES['anywhere'] if not isinstance(place, Adverb)]


def there_is(rng: Rng) -> Clause:
    """Samples 'There is a dog in the garden', which is 'es gibt' with an object."""
    seen = noun_phrase(rng, _VISIBLE_NOUNS)
    weights = (
        _MASS_DETERMINERS
        if seen.noun.mass
        else _PLURAL_DETERMINERS
        if seen.plural
        else _SINGULAR_DETERMINERS
    )
    seen = replace(seen, determiner=DETERMINERS[rng.draw(weights)], owner=None)
    places = _NEARBY_PLACES if rng.chance(0.3) else _SITES
    place = place_in(rng, places, seen)
    front = 'place' if rng.chance(0.3) else 'subject'
    tense = rng.draw({'present': 65, 'past': 35})
    return Clause(
        Expletive('there'), THERE_BE, tense, object=seen, place=place, front=front
    )


def weather(rng: Rng, tense: str = '') -> Clause:
    """Samples 'It is raining in Rome.'

    Examples:
      >>> weather(Rng(0)).subject.english
      'it'
    """
    verb = rng.pick(tuple(WEATHER.values()))
    tense = tense or rng.draw({'progressive': 50, 'past': 30, 'future': 20})
    place = (
        place_in(rng, PLACES['cities'], Expletive('it')) if rng.chance(0.5) else None
    )
    return Clause(Expletive('it'), verb, tense, place=place)
