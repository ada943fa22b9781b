"""Renders a tree in English."""

from parallel_grammar import inflect_english
from parallel_grammar.lexemes import Adjective, Adverb
from parallel_grammar.syntax import (
    INFINITIVES,
    PERSONS,
    THIRD_PLURAL,
    Both,
    Clause,
    Comparison,
    Expletive,
    Interrogative,
    Name,
    Nominal,
    NounPhrase,
    Prepositional,
    Pronoun,
    RelativePronoun,
    Sentence,
    Subordinate,
)

_BE = inflect_english.verb('be', participle='been')
_HAVE = inflect_english.verb('have', 'had')
_DO = inflect_english.verb('do', 'did', 'done')
_OBJECTS = {'I': 'me', 'he': 'him', 'she': 'her', 'we': 'us', 'they': 'them'}


def sentence(tree: Sentence) -> str:
    """Returns the written sentence: 'The dog is sleeping.'"""
    words: list[str] = []
    for clause, joint in zip(tree.clauses, ('', *tree.joints), strict=True):
        comma = [','] if joint and not clause.elided else []
        words += [*comma, joint, *_main(clause, tree.mood)]
    if tree.please:
        words.insert(0, 'please')
    text = ' '.join(filter(None, words))
    text = text.replace(' ,', ',').replace(',,', ',').rstrip(',')
    return text[0].upper() + text[1:] + ('?' if tree.mood == 'question' else '.')


# ---- Noun phrases --------------------------------------------------------------------


def phrase(nominal: Nominal, role: str = 'object') -> list[str]:
    """Returns the words of a noun phrase; `role` is subject, object or other.

    Examples:
      >>> from parallel_grammar.rng import Rng
      >>> from parallel_grammar.lexicon import nouns_of
      >>> from parallel_grammar.sample_phrases import noun_phrase

      >>> phrase(noun_phrase(Rng(1), nouns_of('dog')))
      ['a', 'dog']
    """
    match nominal:
        case Expletive() | Name():
            return [nominal[0]]
        case Pronoun(english):
            return [english if role == 'subject' else _OBJECTS.get(english, english)]
        case Interrogative(human):
            return [('who' if role == 'subject' else 'whom') if human else 'what']
        case RelativePronoun(noun):
            if noun.kind not in PERSONS:
                return ['which' if role == 'other' else 'that']
            return ['who' if role == 'subject' else 'whom']
        case Both(first, second):
            return [*phrase(first), 'and', *phrase(second)]
    return _noun_phrase(nominal)


def _noun_phrase(np: NounPhrase) -> list[str]:
    noun = np.noun.english_plural if np.plural else np.noun.english
    core = [np.adjective.english, noun] if np.adjective else [noun]
    relative = _clause(np.relative) if np.relative else []
    if isinstance(np.owner, NounPhrase) and np.owner.noun.kind not in PERSONS:
        return ['the', *core, 'of', *phrase(np.owner)]
    if np.owner:
        return [*_possessive(np.owner), *core]
    determiner = np.determiner.english_plural if np.plural else np.determiner.english
    if determiner == 'a':
        determiner = inflect_english.article(core[0])
    return [determiner, *core, *relative] if determiner else [*core, *relative]


def _possessive(owner: Nominal) -> list[str]:
    if isinstance(owner, RelativePronoun):
        return ['whose']
    words = phrase(owner)
    bare = owner.person == THIRD_PLURAL and words[-1].endswith('s')
    return [*words[:-1], words[-1] + ("'" if bare else "'s")]


# ---- Verbs ---------------------------------------------------------------------------


def _finite(clause: Clause, emphatic: bool) -> tuple[str, list[str], bool]:
    """Returns the finite verb, the verbs after it, and whether it is an auxiliary.

    `emphatic` requires one, for questions and 'not': 'does … buy' for 'buys'.
    """
    head = clause.verb.english
    rest = []
    tense = clause.tense
    person = clause.subject.person
    if isinstance(clause.subject, Expletive) and clause.object:  # there is, there are
        person = clause.object.person
    auxiliary = head.base == 'be'
    if clause.modal:
        rest = [*clause.modal.link, head.base]
        head = clause.modal.english
        auxiliary = clause.modal.auxiliary
    if tense == 'future':
        return 'will', [head.base, *rest], True
    if tense == 'progressive':
        return _BE.present[person], [head.gerund, *rest], True
    if tense == 'perfect':
        return _HAVE.present[person], [head.participle, *rest], True
    if emphatic and not auxiliary:
        rest = [head.base, *rest]
        head = _DO
        auxiliary = True
    forms = head.past if tense == 'past' else head.present
    return forms[person], rest, auxiliary


def _verbs(clause: Clause, inverted: bool) -> tuple[str, list[str]]:
    finite, rest, auxiliary = _finite(clause, inverted or clause.negative)
    middle = [clause.time.english] if clause.time and clause.time.middle else []
    if clause.front == 'time':
        middle = []
    negation = ['not'] if clause.negative else []
    if inverted:
        return finite, [*negation, *middle, *rest]
    if negation and finite == 'can':
        return '', ['cannot', *middle, *rest]
    if auxiliary:
        return '', [finite, *negation, *middle, *rest]
    return '', [*middle, finite, *rest]


# ---- What follows the verb -----------------------------------------------------------


def _adverbial(part: Prepositional | Adverb) -> list[str]:
    if isinstance(part, Adverb):
        return [part.english]
    return [part.preposition.english, *phrase(part.phrase, 'other')]


def _predicate(part: Adjective | Comparison | NounPhrase) -> list[str]:
    match part:
        case Adjective():
            return [part.english]
        case Comparison(adjective, other, True):
            return ['as', adjective.english, 'as', *phrase(other)]
        case Comparison(adjective, other):
            return [adjective.english_more, 'than', *phrase(other)]
    return phrase(part)


def _objects(clause: Clause) -> dict[str, list[str]]:
    verb = clause.verb
    thing = clause.object
    person = clause.recipient
    particle = {'particle': [verb.particle] if verb.particle else []}
    if not thing:
        return particle
    words = {'object': phrase(thing)}
    is_pronoun = isinstance(thing, Pronoun)
    if verb.recipient:
        is_last = verb.link or is_pronoun or clause.front == 'recipient'
        if not person:
            return words | particle
        if is_last:
            recipient = [verb.link or 'to', *phrase(person, 'other')]
            return words | particle | {'recipient': recipient}
        return {'recipient': phrase(person)} | words | particle
    if verb.link:
        words['object'].insert(0, verb.link)
    elif is_pronoun:
        return words | particle
    return particle | words


def _parts(clause: Clause) -> dict[str, list[str]]:
    parts = _objects(clause)
    if clause.predicate:
        parts['predicate'] = _predicate(clause.predicate)
    for name in ('manner', 'direction', 'place', 'companion', 'time'):
        part = getattr(clause, name)
        if part and not (name == 'time' and part.middle and clause.front != 'time'):
            parts[name] = _adverbial(part)
    return parts


# ---- Clauses -------------------------------------------------------------------------


def _base(clause: Clause) -> list[str]:
    """Returns the clause without subject and tense, for infinitives and requests."""
    rest = [word for words in _parts(clause).values() for word in words]
    return [clause.verb.english.base, *rest, *_tail(clause.tail)]


def _tail(part: Subordinate | None) -> list[str]:
    if not part:
        return []
    infinitive = part.conjunction in INFINITIVES
    return [part.conjunction, *(_base if infinitive else _clause)(part.clause)]


def _clause(clause: Clause, inverted: bool = False) -> list[str]:
    """Returns the front, the subject, the verbs and the rest."""
    parts = _parts(clause)
    if clause.front == 'object' and clause.verb.link and not clause.recipient:
        # 'What does he look for?', 'the key that he looks for'
        link, *front = parts['object']
        parts['object'] = [link]
    else:
        front = parts.pop(clause.front, [])
    before, verbs = _verbs(clause, inverted and clause.front != 'subject')
    subject = [] if clause.elided else phrase(clause.subject, 'subject')
    rest = [word for words in parts.values() for word in words]
    return [*front, before, *subject, *verbs, *rest, *_tail(clause.tail)]


def _main(clause: Clause, mood: str) -> list[str]:
    if mood == 'request':
        return ['do not' if clause.negative else '', *_base(clause)]
    lead = [*_tail(clause.lead), ','] if clause.lead else []
    return [*lead, *_clause(clause, inverted=mood == 'question')]
