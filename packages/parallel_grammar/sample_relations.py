"""Samples dependent clauses: relative clauses, infinitives, continuations."""

from dataclasses import replace
from typing import NamedTuple

from parallel_grammar.lexemes import Noun, Verb
from parallel_grammar.lexicon import DETERMINERS, NOUNS, SITES, nouns_of
from parallel_grammar.rng import Rng
from parallel_grammar.sample_clauses import ALL_VERBS, clause, has_past
from parallel_grammar.sample_phrases import DESCRIBING, noun_of
from parallel_grammar.sample_states import being
from parallel_grammar.syntax import (
    PERSONS,
    THIRD,
    THIRD_PLURAL,
    Both,
    Clause,
    Name,
    Nominal,
    NounPhrase,
    Prepositional,
    Pronoun,
    RelativePronoun,
)

BY_SUBJECT = {
    n.english: [v for v in ALL_VERBS if n in v.subjects] for n in NOUNS.values()
}
BY_OBJECT = {
    n.english: [v for v in ALL_VERBS if n in v.objects] for n in NOUNS.values()
}
_DONE_BY_PEOPLE = {
    name: [v for v in verbs if NOUNS['woman'] in v.subjects]
    for name, verbs in BY_OBJECT.items()
}
HUMAN_VERBS = BY_SUBJECT['woman']
_WILLED = [v for v in HUMAN_VERBS if not {'state', 'chance'} & set(v.notes)]
RECIPIENT_VERBS = [v for v in ALL_VERBS if v.recipient]
_PLACE_VERBS = [v for v in ALL_VERBS if {'anywhere', 'homes!'} & set(v.notes)]
_POSSESSED_NOUNS = nouns_of('pet vehicle brother sister son daughter')


# ---- Relative clauses ----------------------------------------------------------------


def with_relative(rng: Rng, main: Clause) -> Clause:
    """Adds a relative clause to the clause's last phrase, or else to its subject."""
    name = _last_phrase(main)
    if name and rng.chance(0.6):
        part = getattr(main, name)
        if isinstance(part, Prepositional):
            return replace(
                main, **{name: part._replace(phrase=_described(rng, part.phrase))}
            )
        return replace(main, **{name: _described(rng, part)})
    if main.front == 'subject':
        return replace(main, subject=_described(rng, main.subject))
    return main


def _last_phrase(main: Clause) -> str:
    """Returns the part whose relative clause would be last in both languages, or ''."""
    time_last = main.time and not main.time.middle and main.front != 'time'
    if time_last or main.manner or main.predicate:
        return ''
    names = [
        n for n in ('object', 'direction', 'place', 'companion') if getattr(main, n)
    ]
    if not names or main.front in names:
        return ''
    if main.recipient and (main.verb.link or isinstance(main.object, Pronoun)):
        return ''
    if names[0] == 'object' and main.verb.preposition and len(names) > 1:
        return ''
    return (
        names[-1] if len(names) == 1 or names[0] == 'object' and len(names) == 2 else ''
    )


def _described(rng: Rng, phrase: Nominal) -> Nominal:
    if not isinstance(phrase, NounPhrase) or phrase.owner:
        return phrase
    described = relative(rng, phrase.noun, phrase.plural)
    adjective = (
        None if described.predicate else phrase.adjective
    )  # 'the green hat that is red'
    return replace(phrase, adjective=adjective, relative=described)


def relative(rng: Rng, noun: Noun, plural: bool) -> Clause:
    pronoun = RelativePronoun(noun, plural)
    human = noun.kind in PERSONS
    weights = {
        'subject': 35 * bool(BY_SUBJECT[noun.english]),
        'being': 20 * bool(DESCRIBING[noun.english]),
        'object': 35 * bool(BY_OBJECT[noun.english]),
        'recipient': 6 * human,
        'owner': 8 * human,
        'place': 15 * (noun.english in SITES),
    }
    role = rng.draw(weights)
    tense = rng.draw({'present': 50, 'past': 50})
    if role == 'subject':
        return clause(rng, BY_SUBJECT[noun.english], pronoun, tense, extras=False)
    if role == 'being':
        return being(rng, pronoun, noun, tense)
    if role == 'object':
        verbs = BY_OBJECT[noun.english]
        return clause(
            rng, verbs, tense=tense, extras=False, object=pronoun, front='object'
        )
    if role == 'recipient':
        verbs = RECIPIENT_VERBS
        return clause(
            rng, verbs, tense=tense, extras=False, recipient=pronoun, front='recipient'
        )
    if role == 'owner':
        own = NounPhrase(
            rng.pick(_POSSESSED_NOUNS),
            DETERMINERS['the'],
            rng.chance(0.2),
            owner=pronoun,
        )
        return being(rng, own, tense=tense)
    place = Prepositional(SITES[noun.english], pronoun)
    return clause(
        rng, _PLACE_VERBS, tense=tense, extras=False, place=place, front='place'
    )


# ---- References to earlier phrases ---------------------------------------------------


class Antecedent(NamedTuple):
    pronoun: Pronoun
    noun: Noun


def antecedents(main: Clause) -> list[Antecedent]:
    """Returns the antecedents for the next clause; 'it' must be unambiguous."""
    things = [phrase for phrase, _ in main.phrases() if _is_called_it(phrase)]
    named = [main.subject, main.object, main.recipient]
    found = [(phrase, pronoun_for(phrase)) for phrase in named if phrase]
    return [
        Antecedent(pronoun, noun_of(phrase))
        for phrase, pronoun in found
        if pronoun and (pronoun.english != 'it' or len(things) == 1)
    ]


def _is_called_it(phrase: Nominal) -> bool:
    if not isinstance(phrase, NounPhrase):
        return False
    if phrase.owner and _is_called_it(phrase.owner):
        return True
    return not phrase.plural and phrase.noun.pronoun == 'it'


def pronoun_for(nominal: Nominal) -> Pronoun | None:
    if isinstance(nominal, Pronoun):
        return nominal
    if isinstance(nominal, Name):
        return Pronoun('he' if nominal.gender == 'm' else 'she', nominal.gender)
    if isinstance(nominal, Both):
        return Pronoun('they')
    if not isinstance(nominal, NounPhrase):
        return None
    if nominal.determiner.english in ('every', 'no', 'which', 'how many'):
        return None
    if nominal.plural:
        return Pronoun('they')
    if (
        nominal.noun.pronoun == 'she' and nominal.noun.gender == 'n'
    ):  # German uses both es and sie for Mädchen
        return None
    return Pronoun(nominal.noun.pronoun, nominal.noun.gender)


def done_to(antecedent: Antecedent, but: Verb, tense: str) -> list[Verb]:
    """Returns verbs that allow the pronoun as object, except `but`: not 'auf es'."""
    noun = antecedent.noun
    verbs = [
        v for v in _DONE_BY_PEOPLE[noun.english] if v is not but and not v.recipient
    ]
    verbs = [v for v in verbs if tense != 'past' or has_past(v)]
    return [v for v in verbs if noun.kind in PERSONS or not v.preposition]


def about(rng: Rng, main: Clause, tense: str) -> Clause | None:
    """Samples a clause that refers to the main clause by a pronoun, if there is one."""
    known = antecedents(main)
    if not known:
        return None
    pronoun, noun = antecedent = rng.pick(known)
    doing = [v for v in BY_SUBJECT[noun.english] if v is not main.verb]
    done = done_to(antecedent, main.verb, tense)
    third = pronoun.person in (THIRD, THIRD_PLURAL)
    weights = {
        'being': 40 * bool(DESCRIBING[noun.english] and not main.predicate),
        'doing': 25 * bool(doing),
        'done': 35 * bool(done and third),
    }
    kind = rng.draw(weights) if any(weights.values()) else ''
    if kind == 'being':
        return being(rng, pronoun, noun, tense)
    if kind == 'doing':
        return clause(rng, doing, pronoun, tense, extras=False)
    if kind == 'done':
        actors = [
            a.pronoun for a in known if a.noun.kind in PERSONS and a.pronoun != pronoun
        ]
        subject = rng.pick(actors) if actors and rng.chance(0.6) else None
        return clause(rng, done, subject, tense, extras=False, object=pronoun)
    return None


def infinitive(rng: Rng, subject: Nominal) -> Clause:
    given = {'tense': 'present', 'modal': None, 'negative': False, 'time': None}
    return clause(rng, _WILLED, subject, extras=rng.chance(0.4), plain=True, **given)
