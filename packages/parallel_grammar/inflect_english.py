"""English inflection by rule."""

import re

from parallel_grammar.lexemes import EnglishVerb

_DOUBLES = {
    'begin',
    'forget',
    'get',
    'hug',
    'plan',
    'put',
    'run',
    'sit',
    'swim',
    'travel',
}
_IRREGULAR = {
    'be': ('am', 'are', 'is', 'are', 'are'),
    'have': ('have', 'have', 'has', 'have', 'have'),
}


def with_s(word: str) -> str:
    """Returns the plural of a noun or the third person of a verb: boxes, cities.

    Examples:
      >>> with_s('watch'), with_s('city')
      ('watches', 'cities')
    """
    if re.search('[^aeiou]y$', word):
        return word[:-1] + 'ies'
    return word + ('es' if re.search('(s|x|ch|sh|z|[^aeiou]o)$', word) else 's')


def _gerund(base: str) -> str:
    if base in _DOUBLES:
        return base + base[-1] + 'ing'
    if base.endswith('ie'):
        return base[:-2] + 'ying'
    return re.sub('(?<=[^e])e$', '', base) + 'ing' if base != 'be' else 'being'


def _past(base: str) -> str:
    if base in _DOUBLES:
        return base + base[-1] + 'ed'
    if re.search('[^aeiou]y$', base):
        return base[:-1] + 'ied'
    return base + ('d' if base.endswith('e') else 'ed')


def verb(base: str, past: str = '', participle: str = '') -> EnglishVerb:
    """Returns all forms. Without `past` it is regular; `participle` defaults to `past`.

    Examples:
      >>> verb('bake').participle, verb('write', 'wrote', 'written').gerund
      ('baked', 'writing')
    """
    past = past or _past(base)
    present = _IRREGULAR.get(base, (base, base, with_s(base), base, base))
    pasts = ('was', 'were', 'was', 'were', 'were') if base == 'be' else (past,) * 5
    return EnglishVerb(base, present, pasts, participle or past, _gerund(base))


def article(word: str) -> str:
    """Returns 'a' or 'an', depending on the sound of the next word.

    Examples:
      >>> article('hour'), article('house')
      ('an', 'a')
    """
    vowel = re.match('[aeiou]|hour|honest', word) and not re.match('uni|use', word)
    return 'an' if vowel else 'a'
