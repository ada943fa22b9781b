"""Builds the words from the tables: dictionaries by English word."""

import re

from parallel_grammar import (
    inflect_english,
    inflect_german,
    nouns,
    verbs,
    words,
)
from parallel_grammar.lexemes import (
    Adjective,
    Adverb,
    Determiner,
    EnglishVerb,
    GermanVerb,
    Modal,
    Noun,
    Preposition,
    Verb,
)
from parallel_grammar.syntax import Name


def _lines(table: str) -> list[list[str]]:
    joined = table.replace('\n    ', ' ')
    return [
        [f.strip() for f in re.split(': |;', line)]
        for line in joined.splitlines()
        if line
    ]


# ---- Nouns ---------------------------------------------------------------------------

_GENDERS = {'der': 'm', 'die': 'f', 'das': 'n'}
_PRONOUNS = {'man': 'he', 'woman': 'she'}


def _noun(entry: str, kind: str) -> Noun:
    english, article, german, plural = entry.split()
    english, _, english_plural = english.partition('/')
    german, _, genitive = german.partition('/')
    gender, mass = _GENDERS[article], plural == '-'
    weak, german = german.endswith('*'), german.rstrip('*')
    forms = inflect_german.noun_forms(
        german, gender, '' if mass else plural, weak, genitive
    )
    english_plural = english_plural or inflect_english.with_s(english)
    return Noun(
        english, english_plural, forms, gender, kind, _PRONOUNS.get(kind, 'it'), mass
    )


NOUNS = {
    noun.english: noun
    for kind, table in nouns.NOUNS.items()
    for noun in (_noun(entry, kind) for entry in table.split(','))
}

# The locative preposition specific to a noun: on the street, auf der Straße.
SITES = {
    name: Preposition(*site.split())
    for site, names in _lines(words.SITES)
    for name in names.split()
}
_GROUPS = verbs.GROUPS | {
    'inside': ' '.join(n for n, site in SITES.items() if site.english == 'in'),
    'spots': ' '.join(n for n, site in SITES.items() if site.english != 'in'),
}


def nouns_of(text: str) -> tuple[Noun, ...]:
    names = set(' '.join(_GROUPS.get(word, word) for word in text.split()).split())
    unknown = names - set(NOUNS) - set(nouns.NOUNS)
    if unknown:
        raise ValueError(f'{text!r}: {unknown} name no noun and no kind of noun')
    return tuple(n for n in NOUNS.values() if n.english in names or n.kind in names)


NAMES = [
    Name(name, gender, name) for gender in 'fm' for name in words.NAMES[gender].split()
]
TOWNS = [
    Name(english, 'n', german)
    for english, german in map(str.split, words.TOWNS.split(','))
]


# ---- Adjectives, determiners, adverbs, prepositions ----------------------------------


def _adjective(both: str, kinds: str) -> Adjective:
    english, german = both.split()
    english, _, english_more = english.partition('/')
    german, _, german_more = german.partition('/')
    stem = inflect_german.adjective_stem(german)
    english_more = english_more.replace('-', '') if english_more else 'more ' + english
    suits = frozenset(noun.english for noun in nouns_of(kinds))
    return Adjective(
        english, english_more, german, german_more or stem + 'er', stem, suits
    )


def _determiner(english: str, german: str) -> Determiner:
    singular, _, plural = english.strip('-').partition('/')
    stem, pattern = german.split()
    return Determiner(
        singular, plural or singular, stem.strip('-').replace('_', ' '), pattern
    )


def _pairs(text: str, middle: bool = False) -> list[Adverb]:
    return [Adverb(*pair.split(), middle=middle) for pair in text.split(',')]


ADJECTIVES = {
    a.english: a for a in (_adjective(*line) for line in _lines(words.ADJECTIVES))
}
DETERMINERS = {
    d.english: d for d in (_determiner(*line) for line in _lines(words.DETERMINERS))
}
TIMES = [
    Adverb(english, german, tenses=frozenset(' '.join(tenses).split()))
    for english, german, *tenses in _lines(words.TIMES)
]
FREQUENCIES = _pairs(words.FREQUENCIES, middle=True)
MANNERS = {name: _pairs(text) for name, text in words.MANNERS.items()}
PREPOSITIONS = {
    english: Preposition(english, *german.split())
    for english, german in _lines(words.PREPOSITIONS)
}
ADVERBS_OF_PLACE = {
    e: Adverb(e, german) for e, german in _lines(words.ADVERBS_OF_PLACE)
}

# Towns have no article, and their own prepositions: to Rome, nach Rom.
TOWN_PREPOSITIONS = {
    'in': PREPOSITIONS['in'],
    'to': Preposition('to', 'nach', 'dat'),
    'from': Preposition('from', 'aus', 'dat'),
}

Place = Adverb | tuple[Preposition, Noun | Name]


def _alternatives(text: str) -> list[Place]:
    if text in ADVERBS_OF_PLACE:
        return [ADVERBS_OF_PLACE[text]] * 3
    if text.endswith(' towns'):
        return [
            (TOWN_PREPOSITIONS[text.removesuffix(' towns')], town) for town in TOWNS
        ]
    if text.startswith('site '):
        chosen = nouns_of(text.removeprefix('site '))
        return [(SITES[n.english], n) for n in chosen if n.english in SITES]
    name = max((p for p in PREPOSITIONS if text.startswith(p + ' ')), key=len)
    return [
        (PREPOSITIONS[name], noun) for noun in nouns_of(text.removeprefix(name + ' '))
    ]


def _places(table: str) -> dict[str, list[Place]]:
    return {
        name: [place for text in texts for place in _alternatives(text)]
        for name, *texts in _lines(table)
    }


PLACES = _places(words.PLACES)
DIRECTIONS = _places(words.DIRECTIONS)


# ---- Verbs ---------------------------------------------------------------------------


def _english(text: str) -> tuple[EnglishVerb, str, str]:
    forms, _, linked = text.rstrip(')').partition(' (')
    parts = linked.split()
    particle = ' '.join(part[1:] for part in parts if part[0] == '+')
    link = ' '.join(part for part in parts if part[0] != '+')
    return inflect_english.verb(*forms.split()), particle, link


def _german(text: str) -> tuple[GermanVerb, str, str]:
    """Parses 'warten gewartet auf:acc' to the forms of warten, 'auf', 'acc'."""
    past = ''.join(re.findall(r' past=(\w+)', text))
    preposition, case = (re.findall(r' (\w+):(\w+)', text) or [('', '')])[0]
    case = case or ('dat' if text.endswith(' dat') else 'acc')
    core = re.sub(r' past=\w+| \w+:\w+| dat$', '', text).split()
    reflexive, auxiliary = 'sich' in core, 'sein' if 'ist' in core else 'haben'
    infinitive, *third, participle = (
        word for word in core if word not in ('sich', 'ist')
    )
    prefix, _, stem = infinitive.rpartition('·')
    forms = inflect_german.verb(
        stem,
        participle,
        third=third[0] if third else '',
        past=past,
        auxiliary=auxiliary,
        prefix=prefix,
        reflexive=reflexive,
    )
    return forms, preposition, case


def _verb(
    english: str, german: str, objects: str = '', notes: str = '', subjects: str = ''
) -> Verb:
    forms, particle, link = _english(english)
    german_forms, preposition, case = _german(german)
    return Verb(
        forms,
        german_forms,
        particle,
        link,
        preposition,
        case,
        'person' in notes.split(),
        nouns_of(subjects or 'person'),
        nouns_of(objects),
        tuple(notes.split()),
    )


def _verbs(table: str) -> dict[str, Verb]:
    """Returns verbs by base form, particle and link: 'wait for', 'look forward to'."""
    verbs = (_verb(*line) for line in _lines(table))
    return {
        ' '.join(filter(None, (v.english.base, v.particle, v.link))): v for v in verbs
    }


VERBS = _verbs(verbs.VERBS)
CLAUSE_VERBS = _verbs(verbs.CLAUSE_VERBS)
WEATHER = _verbs(verbs.WEATHER)
BE = _verb('be', 'sein ist gewesen past=war')
THERE_BE = _verb('be', 'geben gibt gegeben past=gab')


def _auxiliary(present: str, past: str = '') -> EnglishVerb:
    return EnglishVerb(present, (present,) * 5, (past,) * 5, '', '')


def _subjunctive(infinitive: str, first: str) -> GermanVerb:
    verb = inflect_german.verb(infinitive, past=first)
    return verb._replace(present=verb.past, past=())


_ENGLISH, _GERMAN = inflect_english.verb, inflect_german.verb
MODALS = {
    'can': Modal(
        _auxiliary('can', 'could'),
        (),
        True,
        _GERMAN('können', third='kann', past='konnte'),
    ),
    'want to': Modal(
        _ENGLISH('want'), ('to',), False, _GERMAN('wollen', third='will', past='wollte')
    ),
    'have to': Modal(
        _ENGLISH('have', 'had'),
        ('to',),
        False,
        _GERMAN('müssen', third='muss', past='musste'),
    ),
    'be allowed to': Modal(
        _ENGLISH('be'),
        ('allowed', 'to'),
        True,
        _GERMAN('dürfen', third='darf', past='durfte'),
    ),
    'should': Modal(_auxiliary('should'), (), True, _subjunctive('sollen', 'sollte')),
    'would like to': Modal(
        _auxiliary('would'), ('like', 'to'), True, _subjunctive('mögen', 'möchte')
    ),
}
