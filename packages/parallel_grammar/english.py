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
from parallel_grammar.tagged import Unit, Word, expression, unit

_BE = inflect_english.verb('be', participle='been')
_HAVE = inflect_english.verb('have', 'had')
_DO = inflect_english.verb('do', 'did', 'done')
_COMMA = Word(',')
_OBJECTS = {'I': 'me', 'he': 'him', 'she': 'her', 'we': 'us', 'they': 'them'}


def sentence(tree: Sentence) -> str:
    """Returns the written sentence: 'The dog is sleeping.'"""
    text = ' '.join(words(tree))
    text = text.replace(' ,', ',').replace(',,', ',').rstrip(',')
    return text[0].upper() + text[1:] + ('?' if tree.mood == 'question' else '.')


def words(tree: Sentence) -> list[Word]:
    """Returns the tagged words in order. Each comma is a word without units."""
    found = []
    for clause, joint in zip(tree.clauses, ('', *tree.joints), strict=True):
        comma = [_COMMA] if joint and not clause.elided else []
        joined = Word(joint, unit(clause, 'joint'))
        found += [*comma, joined, *_main(clause, tree.mood)]
    if tree.please:
        found.insert(0, Word('please', unit(tree, 'please')))
    return [word for word in found if word]


# ---- Noun phrases --------------------------------------------------------------------


def phrase(nominal: Nominal, role: str = 'object') -> list[Word]:
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
            return [Word(nominal[0], unit(nominal))]
        case Pronoun(english):
            form = english if role == 'subject' else _OBJECTS.get(english, english)
            return [Word(form, unit(nominal))]
        case Interrogative(human):
            form = ('who' if role == 'subject' else 'whom') if human else 'what'
            return [Word(form, unit(nominal))]
        case RelativePronoun(noun):
            form = 'who' if role == 'subject' else 'whom'
            if noun.kind not in PERSONS:
                form = 'which' if role == 'other' else 'that'
            return [Word(form, unit(noun, 'relative'))]
        case Both(first, second):
            joint = Word('and', unit(nominal, 'and'))
            return [*phrase(first), joint, *phrase(second)]
    return _noun_phrase(nominal)


def _noun_phrase(np: NounPhrase) -> list[Word]:
    form = np.noun.english_plural if np.plural else np.noun.english
    noun = Word(form, unit(np.noun))
    adjective = np.adjective
    if adjective:
        core = [Word(adjective.english, unit(np.noun, 'adjective')), noun]
    else:
        core = [noun]
    relative = _clause(np.relative) if np.relative else []
    article = unit(np.noun, 'determiner')
    if isinstance(np.owner, NounPhrase) and np.owner.noun.kind not in PERSONS:
        possessor = unit(np.owner.noun, 'determiner')
        of = Word('of', unit(np.owner.noun, 'genitive'), possible=(possessor,))
        return [Word('the', article), *core, of, *phrase(np.owner)]
    if np.owner:
        return [*_possessive(np.owner, article), *core]
    determiner = np.determiner.english_plural if np.plural else np.determiner.english
    if determiner == 'a':
        determiner = inflect_english.article(core[0])
    return [*(Word(word, article) for word in determiner.split()), *core, *relative]


def _possessive(
    owner: NounPhrase | Name | RelativePronoun, article: Unit
) -> list[Word]:
    """Returns the words of the owner, which replace the article of unit `article`."""
    if isinstance(owner, RelativePronoun):
        return [Word('whose', unit(owner.noun, 'relative'), article)]
    *before, last = phrase(owner)
    bare = owner.person == THIRD_PLURAL and last.endswith('s')
    text = last + ("'" if bare else "'s")
    if isinstance(owner, Name):
        return [last.also(article, text=text)]
    genitive = unit(owner.noun, 'genitive')
    return [*before, last.also(genitive, text=text, possible=(article,))]


# ---- Verbs ---------------------------------------------------------------------------


def _finite(clause: Clause, emphatic: bool) -> tuple[Word, list[Word], bool]:
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
    base = _full_verb(clause, head.base)
    if clause.modal:
        rest = [*_link(clause), base]
        head = clause.modal.english
        auxiliary = clause.modal.auxiliary
        base = Word(head.base, unit(clause, 'modal'))
    tag = unit(clause, 'auxiliary')
    helped = base.sure[:1]
    if tense == 'future':
        return Word('will', tag, possible=helped), [base, *rest], True
    if tense == 'progressive':
        finite = Word(_BE.present[person], possible=helped)
        return finite, [base.also(text=head.gerund), *rest], True
    if tense == 'perfect':
        finite = Word(_HAVE.present[person], tag, possible=helped)
        return finite, [base.also(text=head.participle), *rest], True
    forms = head.past if tense == 'past' else head.present
    if emphatic and not auxiliary:
        do = _DO.past if tense == 'past' else _DO.present
        return Word(do[person], possible=(*helped, tag)), [base, *rest], True
    return base.also(text=forms[person]), rest, auxiliary


def _full_verb(clause: Clause, form: str) -> Word:
    """Returns the verb, which also means the German prefix unless it has a particle."""
    units = [unit(clause, 'verb')]
    if not clause.verb.particle:
        units.append(unit(clause, 'prefix'))
    helping = unit(clause, 'auxiliary'), unit(clause, 'link')
    return Word(form, *units, possible=helping)


def _link(clause: Clause) -> list[Word]:
    """Returns the words between a modal and its verb: 'allowed', 'to'."""
    modal = unit(clause, 'modal')
    words = []
    for text in clause.modal.link if clause.modal else ():
        tagged = Word(text, possible=(modal,)) if text == 'to' else Word(text, modal)
        words.append(tagged)
    return words


def _verbs(clause: Clause, inverted: bool) -> tuple[Word, list[Word]]:
    finite, rest, auxiliary = _finite(clause, inverted or clause.negative)
    middle = []
    if clause.time and clause.time.middle and clause.front != 'time':
        middle = expression(clause.time.english, clause.time)
    negation = [Word('not', unit(clause, 'not'))] if clause.negative else []
    if inverted:
        return finite, [*negation, *middle, *rest]
    if negation and finite == 'can':
        cannot = finite.also(*negation[0].sure, text='cannot')
        return Word(''), [cannot, *middle, *rest]
    if auxiliary:
        return Word(''), [finite, *negation, *middle, *rest]
    return Word(''), [*middle, finite, *rest]


# ---- After the verb ------------------------------------------------------------------


def _adverbial(part: Prepositional | Adverb) -> list[Word]:
    if isinstance(part, Adverb):
        return expression(part.english, part)
    preposition = part.preposition.english.split()
    words = [Word(word, unit(part)) for word in preposition]
    return [*words, *phrase(part.phrase, 'other')]


def _predicate(part: Adjective | Comparison | NounPhrase) -> list[Word]:
    match part:
        case Adjective():
            return [Word(part.english, unit(part))]
        case Comparison(adjective, other, True):
            return [
                Word('as', unit(part, 'as')),
                Word(adjective.english, unit(adjective)),
                Word('as', unit(part, 'than')),
                *phrase(other),
            ]
        case Comparison(adjective, other):
            more = adjective.english_more.split()
            than = Word('than', unit(part, 'than'))
            words = [Word(word, unit(adjective)) for word in more]
            return [*words, than, *phrase(other)]
    return phrase(part)


def _objects(clause: Clause) -> dict[str, list[Word]]:
    verb = clause.verb
    thing = clause.object
    person = clause.recipient
    particle = {'particle': []}
    if verb.particle:
        particle = {'particle': [Word(verb.particle, unit(clause, 'prefix'))]}
    if not thing:
        return particle
    words = {'object': phrase(thing)}
    is_pronoun = isinstance(thing, Pronoun)
    if verb.recipient:
        is_last = verb.link or is_pronoun or clause.front == 'recipient'
        if not person:
            return words | particle
        if is_last:
            to = Word(verb.link or 'to', unit(clause, 'recipient'))
            recipient = [to, *phrase(person, 'other')]
            return words | particle | {'recipient': recipient}
        return {'recipient': phrase(person)} | words | particle
    if verb.link:
        helped = (unit(clause, 'verb'),)
        link = Word(verb.link, unit(clause, 'link'), possible=helped)
        words['object'].insert(0, link)
    elif is_pronoun:
        return words | particle
    return particle | words


def _parts(clause: Clause) -> dict[str, list[Word]]:
    parts = _objects(clause)
    if clause.predicate:
        parts['predicate'] = _predicate(clause.predicate)
    for name in ('manner', 'direction', 'place', 'companion', 'time'):
        part = getattr(clause, name)
        if part and not (name == 'time' and part.middle and clause.front != 'time'):
            parts[name] = _adverbial(part)
    return parts


# ---- Clauses -------------------------------------------------------------------------


def _base(clause: Clause) -> list[Word]:
    """Returns the clause without subject and tense, for infinitives and requests."""
    rest = [word for words in _parts(clause).values() for word in words]
    verb = _full_verb(clause, clause.verb.english.base)
    return [verb, *rest, *_tail(clause.tail)]


def _tail(part: Subordinate | None) -> list[Word]:
    if not part:
        return []
    conjunction = unit(part.clause, 'conjunction')
    if part.conjunction not in INFINITIVES:
        return [Word(part.conjunction, conjunction), *_clause(part.clause)]
    *before, to = part.conjunction.split()
    purpose = [Word(word, conjunction) for word in before]
    return [*purpose, Word(to, unit(part.clause, 'to')), *_base(part.clause)]


def _clause(clause: Clause, inverted: bool = False) -> list[Word]:
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


def _main(clause: Clause, mood: str) -> list[Word]:
    if mood == 'request':
        if not clause.negative:
            return _base(clause)
        do = Word('do', possible=(unit(clause, 'verb'),))
        return [do, Word('not', unit(clause, 'not')), *_base(clause)]
    lead = [*_tail(clause.lead), _COMMA] if clause.lead else []
    return [*lead, *_clause(clause, inverted=mood == 'question')]
