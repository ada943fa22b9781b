"""German inflection by rule."""

import re

from parallel_grammar.lexemes import GermanVerb

_PRESENT = {
    'sein': ('bin', 'bist', 'ist', 'sind', 'sind'),
    'haben': ('habe', 'hast', 'hat', 'haben', 'haben'),
    'werden': ('werde', 'wirst', 'wird', 'werden', 'werden'),
}
# Stems that need -e- before -st and -t: wart-, öffn-.
_NEEDS_E = '([td]|(ch|[^lrmnhaeiouäöü])[mn])$'
_KEEPS_E = {
    'danken',
    'folgen',
    'jagen',
    'reisen',
    'umarmen',
}  # in the imperative: Reise!


def noun_forms(
    noun: str, gender: str, plural: str, weak: bool = False, genitive: str = ''
) -> dict[tuple[bool, str], str]:
    """Returns (is plural, case) → form.

    Weak nouns have the form of the plural in all cases but the nominative. Monosyllabic
    nouns and those that end in a sibilant take -es in the genitive, unless `genitive`
    is given. Other masculine and neuter nouns take -s. `plural` may be empty.

    Examples:
      >>> forms = noun_forms('Hund', 'm', 'Hunde')
      >>> forms[False, 'gen'], forms[True, 'dat']
      ('Hundes', 'Hunden')
    """
    oblique = plural if weak else noun
    if not genitive:
        genitive = oblique if weak or gender == 'f' else noun + _genitive_ending(noun)
    forms = {
        (False, 'nom'): noun,
        (False, 'acc'): oblique,
        (False, 'dat'): oblique,
        (False, 'gen'): genitive,
    }
    if plural:
        forms |= {(True, case): plural for case in ('nom', 'acc', 'dat', 'gen')}
        if not re.search('[ns]$', plural):
            forms[True, 'dat'] += 'n'
    return forms


def _genitive_ending(noun: str) -> str:
    one_syllable = len(re.findall('[aeiouäöüy]+', noun.lower())) == 1
    if re.search('[aeiouäöüy]$', noun):
        return 's'
    return 'es' if one_syllable or re.search('(s|ß|x|z|sch)$', noun) else 's'


def adjective_stem(adjective: str) -> str:
    """Returns the stem of an adjective: dunkel → dunkl-, müde → müd-, hoch → hoh-."""
    if adjective == 'hoch':
        return 'hoh'
    return re.sub('e(?=l$)|(?<=u)e(?=r$)|e$', '', adjective)


def _present(infinitive: str, third: str) -> tuple[str, ...]:
    if infinitive in _PRESENT:
        return _PRESENT[infinitive]
    stem = re.sub('e?n$', '', infinitive)
    link = 'e' if re.search(_NEEDS_E, stem) else ''
    first = stem[:-2] + 'le' if infinitive.endswith('eln') else stem + 'e'
    hissing = '(s|ß|x|z)$'
    if not third:
        second = stem + link + ('t' if re.search(hissing, stem) else 'st')
        return first, second, stem + link + 't', infinitive, infinitive
    if not third.endswith(
        't'
    ):  # können, müssen, wissen, mögen: the first person is the third
        second = third + ('t' if re.search(hissing, third) else 'st')
        return third, second, third, infinitive, infinitive
    base = third if stem.endswith('t') else third[:-1]
    second = base + ('t' if re.search(hissing, base) else 'st')
    return first, second, third, infinitive, infinitive


def _past(first: str) -> tuple[str, ...]:
    if not first:
        return ()
    plural = first + ('n' if first.endswith('e') else 'en')
    return first, first + 'st', first, plural, plural


def _imperative(present: tuple[str, ...]) -> str:
    first, _, third, infinitive, _ = present
    stem = re.sub('e?n$', '', infinitive)
    if 'e' in stem and re.search('i', third) and not re.search('i', stem):
        return third[:-1]
    keep = re.search(_NEEDS_E, stem) or re.search('e[lr]n$|[^l]ieren$', infinitive)
    keep = keep or infinitive in _KEEPS_E
    return first if keep else first.removesuffix('e')


def verb(
    infinitive: str,
    participle: str = '',
    *,
    third: str = '',
    past: str = '',
    auxiliary: str = 'haben',
    prefix: str = '',
    reflexive: bool = False,
) -> GermanVerb:
    """Returns all forms. `participle` is stored as given, with any prefix.

    Examples:
      >>> verb('arbeiten').present[:3]
      ('arbeite', 'arbeitest', 'arbeitet')
    """
    present = _present(infinitive, third)
    return GermanVerb(
        infinitive,
        present,
        _past(past),
        participle,
        auxiliary,
        prefix,
        reflexive,
        _imperative(present),
    )
