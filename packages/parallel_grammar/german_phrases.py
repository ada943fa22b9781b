"""Renders the phrases of a clause in German: noun phrases in a case, and predicates."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeGuard

from parallel_grammar.lexemes import Adjective, Adverb, Determiner, Noun
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
from parallel_grammar.tagged import (
    Decider,
    Unit,
    Word,
    decided_by,
    expression,
    unit,
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
_NO_ENDINGS = dict.fromkeys(_DER, '')
# Endings of the determiner, and of the adjective after it.
_PATTERNS = {
    'der': (_DER, _WEAK),
    'dieser': (_DIESER, _WEAK),
    'ein': (_EIN, _MIXED),
    'viele': (_DIESER, _STRONG),
    'none': (_NO_ENDINGS, _STRONG),
}
_ADJECTIVE_ENDINGS = (_WEAK, _MIXED, _STRONG)
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
_NEGATIVE_DETERMINER = Determiner('no', 'no', 'kein', 'ein')


def phrase(nominal: Nominal, case: str, by: Sequence[Unit] = ()) -> list[Word]:
    """Returns the words of a noun phrase in a case, without its relative clause.

    Args:
      by: The units that decide the case. The nominative of a subject has none.

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
            return [Word('es', unit(nominal))]
        case Pronoun():
            return [_pronoun(nominal, case, by)]
        case Name():
            return [Word(nominal.german, unit(nominal))]
        case Interrogative(human):
            if not human:
                return [Word('was', unit(nominal))]
            who = Word(_WHO[case], unit(nominal))
            return [who.also(deciders=lambda: decided_by('case', by))]
        case RelativePronoun():
            return [_relative_pronoun(nominal, case, by)]
        case Both(first, second):
            und = Word('und', unit(nominal, 'and'))
            return [*phrase(first, case, by), und, *phrase(second, case, by)]
    return _noun_phrase(nominal, case, by)


def _pronoun(pronoun: Pronoun, case: str, by: Sequence[Unit]) -> Word:
    forms = _PRONOUNS.get(pronoun.english) or _PRONOUNS[pronoun.gender]
    form = forms.split()[_CASES.index(case)]
    word = Word(form, unit(pronoun), deciders=lambda: decided_by('case', by))
    return _referring(word, pronoun.antecedent)


def _referring(word: Word, antecedent: Noun | None) -> Word:
    """Returns the pronoun or determiner with the noun that decides its gender."""
    if not antecedent:
        return word
    units = [unit(antecedent)]
    return word.also(deciders=lambda: decided_by('pronoun gender', units))


def _relative_pronoun(
    pronoun: RelativePronoun, case: str, by: Sequence[Unit] = ()
) -> Word:
    form = _RELATIVE[_agreement(pronoun), case]

    def deciders() -> Iterable[Decider]:
        for phenomenon, by_unit in _deciders(_RELATIVE, pronoun, case, by):
            yield ('case' if phenomenon == 'case' else 'relative pronoun'), by_unit

    return Word(form, unit(pronoun.noun, 'relative'), deciders=deciders)


def _agreement(nominal: NounPhrase | RelativePronoun) -> str:
    return 'pl' if nominal.plural else nominal.noun.gender


def _deciders(
    forms: dict[tuple[str, str], str],
    nominal: NounPhrase | RelativePronoun,
    case: str,
    by: Sequence[Unit],
) -> list[Decider]:
    """Returns the features of a noun phrase that change the form if they change."""
    noun = nominal.noun
    agreement = _agreement(nominal)
    form = forms[agreement, case]
    other_number = noun.gender if nominal.plural else 'pl'
    found = []
    if not nominal.plural and any(forms[g, case] != form for g in 'mfn'):
        found += decided_by('gender', [unit(noun)])
    if not noun.mass and forms[other_number, case] != form:
        found += decided_by('number', [unit(noun)])
    if any(forms[agreement, other] != form for other in _CASES):
        found += decided_by('case', by)
    return found


def _noun_phrase(np: NounPhrase, case: str, by: Sequence[Unit]) -> list[Word]:
    cell = _agreement(np), case
    determiner = np.determiner.german
    pattern = np.determiner.pattern
    article = unit(np.noun, 'determiner')
    after = []
    words = []
    if isinstance(np.owner, NounPhrase):
        determiner = ''
        pattern = 'der'
        after = _noun_phrase(np.owner, 'gen', [unit(np.owner.noun, 'genitive')])
    elif np.owner:
        pattern = 'none'
        determiner = ''
        words = [_possessive(np.owner).also(article)]
    own, of_adjective = _PATTERNS[pattern]
    *before, last = (determiner + own[cell]).split() or ['']
    words += [Word(text, article) for text in before]
    found = Word(last, article, deciders=lambda: _deciders(own, np, case, by))
    words.append(_referring(found, np.antecedent))
    if np.adjective:
        adjective = Word(
            np.adjective.stem + of_adjective[cell],
            unit(np.noun, 'adjective'),
            deciders=lambda: _deciders(of_adjective, np, case, by),
        )
        if len({endings[cell] for endings in _ADJECTIVE_ENDINGS}) > 1:
            by_article = [article]
            adjective = adjective.also(
                deciders=lambda: decided_by('declension', by_article)
            )
        words.append(adjective)
    return [*filter(None, words), _noun(np, case, by), *after]


def _noun(np: NounPhrase, case: str, by: Sequence[Unit]) -> Word:
    forms = np.noun.german
    form = forms[np.plural, case]

    def deciders() -> Iterable[Decider]:
        changes = any(forms[np.plural, other] != form for other in _CASES)
        return decided_by('case', by) if changes else []

    return Word(form, unit(np.noun), deciders=deciders)


def _possessive(owner: Name | RelativePronoun) -> Word:
    if isinstance(owner, Name):
        return Word(owner.german + 's', unit(owner))
    return _relative_pronoun(owner, 'gen')


def indefinite(nominal: object) -> TypeGuard[NounPhrase]:
    if not isinstance(nominal, NounPhrase) or nominal.owner:
        return False
    return nominal.determiner.english in ('a', '')


def negated(np: NounPhrase) -> NounPhrase:
    """Returns 'kein Hund' for 'ein Hund'."""
    return replace(np, determiner=_NEGATIVE_DETERMINER)


def reflexive(person: int) -> str:
    return _REFLEXIVES[person]


def adverbial(
    part: Prepositional | Adverb, case: str, by: Sequence[Unit] = ()
) -> list[Word]:
    """Returns an adverbial of place, direction or company.

    Args:
      by: The units that decide the case if the preposition takes two cases.
    """
    if isinstance(part, Adverb):
        return expression(part.german, part)
    preposition = Word(part.preposition.german, unit(part))
    if part.preposition.case:
        return prepositional(preposition, part.phrase, part.preposition.case)
    return prepositional(preposition, part.phrase, case, by)


def prepositional(
    preposition: Word, nominal: Nominal, case: str, by: Sequence[Unit] = ()
) -> list[Word]:
    """Returns preposition and phrase; contracts (im) unless a relative follows."""
    words = [preposition, *phrase(nominal, case, [*preposition.sure, *by])]
    if (
        isinstance(nominal, NounPhrase)
        and not nominal.relative
        and _has_article(nominal)
    ):
        contracted = _CONTRACTED.get(' '.join(words[:2]))
        if contracted:
            article = words[1]
            both = article.also(*preposition.sure, text=contracted)
            return [both, *words[2:]]
    return words


def _has_article(np: NounPhrase) -> bool:
    return np.determiner.pattern == 'der' or isinstance(np.owner, NounPhrase)


def predicate(part: Adjective | Comparison | NounPhrase, negative: bool) -> list[Word]:
    match part:
        case Adjective():
            return [Word(part.german, unit(part))]
        case Comparison(adjective, other, True):
            return [
                Word('so', unit(part, 'as')),
                Word(adjective.german, unit(adjective)),
                Word('wie', unit(part, 'than')),
                *phrase(other, 'nom'),
            ]
        case Comparison(adjective, other):
            return [
                Word(adjective.german_more, unit(adjective)),
                Word('als', unit(part, 'than')),
                *phrase(other, 'nom'),
            ]
    return phrase(negated(part) if negative and indefinite(part) else part, 'nom')
