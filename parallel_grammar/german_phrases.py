"""Renders the phrases of a clause in German: noun phrases in a case, and predicates."""

from dataclasses import replace
from typing import TypeGuard

from parallel_grammar.lexemes import Adjective, Adverb, Determiner
from parallel_grammar.syntax import (
    Both,
    Comparison,
    Expletive,
    Interrogative,
    Name,
    Nominal,
    NounPhrase,
    Prepositional,
    Pronoun,
    RelativePronoun,
)

_CASES = ('nom', 'acc', 'dat', 'gen')


def _table(text: str) -> dict[tuple[str, str], str]:
    """Parses lines, one per gender, to (gender or 'pl', case) → form; '-' is empty."""
    return {
        (gender, case): form.strip('-')
        for gender, line in zip(
            ('m', 'f', 'n', 'pl'), text.strip().splitlines(), strict=True
        )
        for case, form in zip(_CASES, line.split(), strict=True)
    }


_DER = _table("""
der den dem des
die die der der
das das dem des
die die den der
""")
_DIESER = _table("""
er en em es
e e er er
es es em es
e e en er
""")
_EIN = _table("""
- en em es
e e er er
- - em es
e e en er
""")
_WEAK = _table("""
e en en en
e e en en
e e en en
en en en en
""")
_MIXED = _table("""
er en en en
e e en en
es es en en
en en en en
""")
_STRONG = _table("""
er en em en
e e er er
es es em en
e e en er
""")
_NONE = dict.fromkeys(_DER, '')
# Endings of the determiner, and of the adjective after it.
_PATTERNS = {
    'der': (_DER, _WEAK),
    'dieser': (_DIESER, _WEAK),
    'ein': (_EIN, _MIXED),
    'viele': (_DIESER, _STRONG),
    'none': (_NONE, _STRONG),
}
_RELATIVE = _table("""
der den dem dessen
die die der deren
das das dem dessen
die die denen deren
""")
_WHO: dict[str, str] = dict(zip(_CASES, ('wer', 'wen', 'wem', 'wessen'), strict=True))

# By the English pronoun, or by gender in the third person singular.
_PRONOUNS = {
    'I': 'ich mich mir',
    'you': 'du dich dir',
    'we': 'wir uns uns',
    'they': 'sie sie ihnen',
    'm': 'er ihn ihm',
    'f': 'sie sie ihr',
    'n': 'es es ihm',
}
_REFLEXIVES = ('mich', 'dich', 'sich', 'uns', 'sich')
_CONTRACTED = {
    'in dem': 'im',
    'in das': 'ins',
    'an dem': 'am',
    'von dem': 'vom',
    'zu dem': 'zum',
    'zu der': 'zur',
}
_NO = Determiner('no', 'no', 'kein', 'ein')


def phrase(nominal: Nominal, case: str) -> list[str]:
    """Returns the words of a noun phrase in a case, without its relative clause.

    Examples:
      >>> from parallel_grammar.rng import Rng
      >>> from parallel_grammar.lexicon import nouns_of
      >>> from parallel_grammar.sample_phrases import noun_phrase

      >>> dog = noun_phrase(Rng(1), nouns_of('dog'))
      >>> phrase(dog, 'nom'), phrase(dog, 'dat')
      (['ein', 'Hund'], ['einem', 'Hund'])
    """
    match nominal:
        case Expletive():
            return ['es']
        case Pronoun(english, gender):
            forms = _PRONOUNS.get(english) or _PRONOUNS[gender]
            return [forms.split()[_CASES.index(case)]]
        case Name():
            return [nominal.german]
        case Interrogative(human):
            return [_WHO[case] if human else 'was']
        case RelativePronoun():
            return [_RELATIVE[_agreement(nominal), case]]
        case Both(first, second):
            return [*phrase(first, case), 'und', *phrase(second, case)]
    return _noun_phrase(nominal, case)


def _agreement(nominal: NounPhrase | RelativePronoun) -> str:
    return 'pl' if nominal.plural else nominal.noun.gender


def _noun_phrase(np: NounPhrase, case: str) -> list[str]:
    cell = _agreement(np), case
    determiner = np.determiner.german
    pattern = np.determiner.pattern
    after = []
    if isinstance(np.owner, NounPhrase):
        determiner = ''
        pattern = 'der'
        after = _noun_phrase(np.owner, 'gen')
    elif np.owner:
        pattern = 'none'
        determiner = _possessive(np.owner)
    own, of_adjective = _PATTERNS[pattern]
    words = [determiner + own[cell]]
    if np.adjective:
        words.append(np.adjective.stem + of_adjective[cell])
    return [*filter(None, words), np.noun.german[np.plural, case], *after]


def _possessive(owner: Name | RelativePronoun) -> str:
    if isinstance(owner, Name):
        return owner.german + 's'
    return _RELATIVE[_agreement(owner), 'gen']


def indefinite(nominal: object) -> TypeGuard[NounPhrase]:
    if not isinstance(nominal, NounPhrase) or nominal.owner:
        return False
    return nominal.determiner.english in ('a', '')


def negated(np: NounPhrase) -> NounPhrase:
    """Returns 'kein Hund' for 'ein Hund'."""
    return replace(np, determiner=_NO)


def reflexive(person: int) -> str:
    return _REFLEXIVES[person]


def adverbial(part: Prepositional | Adverb, case: str) -> list[str]:
    if isinstance(part, Adverb):
        return [part.german]
    return prepositional(
        part.preposition.german, part.phrase, part.preposition.case or case
    )


def prepositional(preposition: str, nominal: Nominal, case: str) -> list[str]:
    """Returns preposition and phrase; contracts (im) unless a relative follows."""
    words = [preposition, *phrase(nominal, case)]
    if (
        isinstance(nominal, NounPhrase)
        and not nominal.relative
        and _has_article(nominal)
    ):
        both = ' '.join(words[:2])
        return [_CONTRACTED.get(both, both), *words[2:]]
    return words


def _has_article(np: NounPhrase) -> bool:
    return np.determiner.pattern == 'der' or isinstance(np.owner, NounPhrase)


def predicate(part: Adjective | Comparison | NounPhrase, negative: bool) -> list[str]:
    match part:
        case Adjective():
            return [part.german]
        case Comparison(adjective, other, True):
            return ['so', adjective.german, 'wie', *phrase(other, 'nom')]
        case Comparison(adjective, other):
            return [adjective.german_more, 'als', *phrase(other, 'nom')]
    return phrase(negated(part) if negative and indefinite(part) else part, 'nom')
