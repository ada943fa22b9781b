"""Draws whole sentences: the kinds there are, and how often each comes."""

from dataclasses import replace

from experiments.data._grammar.dice import Dice
from experiments.data._grammar.lexicon import (
    BE,
    CLAUSE_VERBS,
    DETERMINERS,
    DIRECTIONS,
    PLACES,
    VERBS,
)
from experiments.data._grammar.sample_clauses import ALL_VERBS, clause
from experiments.data._grammar.sample_phrases import is_none, noun_phrase, subject_of
from experiments.data._grammar.sample_relations import (
    HUMAN_VERBS,
    RECIPIENT_VERBS,
    about,
    antecedents,
    done_to,
    infinitive,
    pronoun_for,
    with_relative,
)
from experiments.data._grammar.sample_states import being, there_is, weather
from experiments.data._grammar.syntax import (
    PERSONS,
    Adverb,
    Clause,
    Interrogative,
    Noun,
    NounPhrase,
    Pronoun,
    Sentence,
    Subordinate,
    Verb,
)


def _with_notes(notes: set[str]) -> list[Verb]:
    return [v for v in ALL_VERBS if notes & {note.rstrip('!') for note in v.notes}]


# Not 'What does he know?', where German would say 'wissen'.
_TRANSITIVE = [v for v in ALL_VERBS if v.objects and v.english.base != 'know']
_PLACED = _with_notes(set(PLACES))
_DIRECTED = _with_notes(set(DIRECTIONS) - {'whence', 'through'})
_MANNERED = _with_notes({'speed', 'care', 'how'})
_PURPOSEFUL = [
    VERBS[name]
    for name in (
        *('go', 'come', 'drive', 'travel', 'run', 'hurry', 'get up', 'come back', 'stay', 'wait'),
        *('call', 'visit', 'buy', 'order', 'look for', 'turn on', 'help', 'listen to'),
    )
]
_LASTING = [v for v in ALL_VERBS if 'state' not in v.notes]  # what one can do 'while' and 'before'


# ---- Statements ---------------------------------------------------------------------------------


def statement(dice: Dice) -> Sentence:
    return Sentence((_with_front(dice, clause(dice)),))


def description(dice: Dice) -> Sentence:
    return Sentence((_with_front(dice, being(dice)),))


def existence(dice: Dice) -> Sentence:
    return Sentence((weather(dice) if dice.chance(0.15) else there_is(dice),))


def described(dice: Dice) -> Sentence:
    """With a relative clause."""
    return Sentence((with_relative(dice, _time_first(clause(dice, extras=dice.chance(0.3)))),))


def _time_first(main: Clause) -> Clause:
    """German then turns verb and subject."""
    return replace(main, front='time') if main.time and not main.time.middle else main


def _with_front(dice: Dice, main: Clause) -> Clause:
    """The clause with its time or its place first, sometimes."""
    if main.time:
        return _time_first(main) if dice.chance(0.5) else main
    required = any(note.endswith('!') for note in main.verb.notes)
    if main.place and not required and dice.chance(0.3):
        return replace(main, front='place')
    return main


# ---- Questions and requests ---------------------------------------------------------------------


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
        return clause(dice, HUMAN_VERBS, Interrogative(True), plain=True, negative=False)
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
    thing = Interrogative(human) if simple and dice.chance(0.6) else _which(dice, (noun,))
    return clause(dice, [verb], plain=True, negative=False, object=thing, front='object')


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
    asked = clause(dice, _LASTING, None, tense, plain=True, time=word, front='time')
    return asked if word.english == 'why' else replace(asked, negative=False)


def _how(dice: Dice) -> Clause:
    given = {'manner': Adverb('how', 'wie'), 'front': 'manner', 'negative': False}
    return clause(dice, _MANNERED, extras=False, plain=True, **given)


def request(dice: Dice) -> Sentence:
    asked = infinitive(dice, Pronoun('you'))
    asked = replace(asked, negative=dice.chance(0.25))
    return Sentence((asked,), mood='request', please=dice.chance(0.4))


# ---- Sentences of two clauses -------------------------------------------------------------------


def _plain_clause(dice: Dice, tense: str, lasting: bool = False) -> Clause:
    """A short clause, so that a pronoun can speak on of what it names."""
    if lasting:
        return clause(dice, _LASTING, None, tense, extras=False, negative=False, modal=None)
    if dice.chance(0.12):
        return being(dice, tense=tense)
    return clause(dice, tense=tense, extras=False)


def _second_clause(dice: Dice, first: Clause, tense: str, lasting: bool = False) -> Clause:
    made = about(dice, first, tense) if dice.chance(0.6) else None
    if made and not (lasting and (made.negative or made.modal or made.verb not in _LASTING)):
        return made
    if not lasting and dice.chance(0.1):
        return weather(dice, tense)
    return _plain_clause(dice, tense, lasting)


def subordinate(dice: Dice) -> Sentence:
    """'…, because …', or the other way round: 'When …, …'."""
    kinds = {'because': 30, 'although': 16, 'if': 14, 'when': 18, 'while': 10, 'before': 12}
    conjunction = dice.draw(kinds)
    lasting = conjunction in ('while', 'before')
    tense = 'present' if conjunction == 'if' else dice.pick(('present', 'past'))
    first = _plain_clause(dice, tense, lasting)
    second = _second_clause(dice, first, tense, lasting)
    if dice.chance(0.4):
        return Sentence((replace(second, lead=Subordinate(conjunction, first)),))
    return Sentence((replace(first, tail=Subordinate(conjunction, second)),))


def complement(dice: Dice) -> Sentence:
    """'says that …', 'asks whether …', 'Do you know whether …?'"""
    conjunction = dice.draw({'that': 70, 'whether': 30})
    verb = dice.pick([v for v in CLAUSE_VERBS.values() if conjunction in v.notes])
    main = Clause(subject_of(dice, verb, 'plain'), verb, dice.draw({'present': 60, 'past': 40}))
    doubtful = conjunction == 'whether' and 'that' in verb.notes  # one does not know whether …
    asked = doubtful and dice.chance(0.5)
    if doubtful or (conjunction == 'that' and dice.chance(0.12)):
        main = replace(main, negative=not asked, front='verb' if asked else 'subject')
    said = _said(dice, main)
    main = replace(main, tail=Subordinate(conjunction, said))
    return Sentence((main,), mood='question' if asked else 'statement')


def _said(dice: Dice, main: Clause) -> Clause:
    """Somebody who thinks of the past thinks in the past: that is always right in English."""
    tense = 'past' if main.tense == 'past' else ''
    made = about(dice, main, tense or 'present') if dice.chance(0.3) else None
    if made or dice.chance(0.25):
        return made or being(dice, tense=tense)
    return clause(dice, tense=tense, extras=dice.chance(0.5))


def intention(dice: Dice) -> Sentence:
    """'tries to …'"""
    verb = dice.pick([v for v in CLAUSE_VERBS.values() if 'to' in v.notes])
    subject = subject_of(dice, verb, 'plain')
    tense = dice.draw({'present': 40, 'past': 45, 'perfect': 8, 'future': 7})
    if 'state' in verb.notes:
        tense = dice.pick(('present', 'past'))
    what = infinitive(dice, subject)
    while not _is_extended(what):
        what = infinitive(dice, subject)
    tail = Subordinate('to', what)
    return Sentence((Clause(subject, verb, tense, negative=dice.chance(0.1), tail=tail),))


def _is_extended(what: Clause) -> bool:
    """More than 'to dance', before which a German comma is a matter of taste."""
    parts = (what.object, what.place, what.direction, what.manner, what.companion)
    return any(parts) or what.verb.german.reflexive


def purpose(dice: Dice) -> Sentence:
    """'… in order to …'"""
    subject = subject_of(dice, BE)
    tense = dice.pick(('present', 'past'))
    main = clause(dice, _PURPOSEFUL, subject, tense, extras=False, negative=False)
    tail = Subordinate('in order to', infinitive(dice, subject))
    return Sentence((replace(main, tail=tail),))


def joined(dice: Dice) -> Sentence:
    """Two main clauses: '…, and …'."""
    tense = dice.pick(('present', 'past'))
    first = _plain_clause(dice, tense)
    second = _second_clause(dice, first, tense)
    return Sentence((first, second), (dice.draw({'and': 60, 'but': 40}),))


def shared(dice: Dice) -> Sentence:
    """Two clauses with one subject: 'buys the cake and eats it', 'but does not eat it'."""
    subject = subject_of(dice, BE, 'plain')
    tense = dice.draw({'present': 40, 'past': 45, 'future': 15})
    given = {'extras': False, 'plain': True, 'negative': False, 'modal': None}
    first = clause(dice, HUMAN_VERBS, subject, tense, **given)
    rest = [a for a in antecedents(first) if a.pronoun != pronoun_for(subject)]
    joint = 'but' if dice.chance(0.3) else 'and'
    given['negative'] = joint == 'but'
    # Not 'turns on the lamp and has it'.
    fitting = [v for v in done_to(rest[0], first.verb) if 'state' not in v.notes] if rest else []
    if fitting and dice.chance(0.8):
        given['object'] = rest[0].pronoun
    verbs = fitting if 'object' in given else [v for v in _LASTING if v in HUMAN_VERBS]
    second = clause(dice, verbs, subject, tense, elided=True, **given)
    return Sentence((first, second), (joint,))


# ---- All of them --------------------------------------------------------------------------------

KINDS = {
    statement: 22,
    description: 8,
    existence: 5,
    described: 16,
    yes_or_no: 6,
    question: 9,
    request: 4,
    subordinate: 14,
    complement: 6,
    intention: 4,
    purpose: 3,
    joined: 5,
    shared: 5,
}
_JOINABLE = {
    kind: weight for kind, weight in KINDS.items() if kind not in (yes_or_no, question, request)
}


def sentence(dice: Dice) -> Sentence:
    """One of any kind."""
    return dice.draw(KINDS)(dice)


def long_sentence(dice: Dice) -> Sentence:
    """Two or three statements joined, with more subordinate clauses inside."""
    parts = [_statement(dice) for _ in range(dice.pick((2, 2, 3)))]
    clauses, joints = parts[0].clauses, parts[0].joints
    for part in parts[1:]:
        clauses += part.clauses
        joints += (dice.pick(('and', 'but')), *part.joints)
    return Sentence(clauses, joints)


def _statement(dice: Dice) -> Sentence:
    made = dice.draw(_JOINABLE)(dice)
    if made.mood != 'statement':
        return _statement(dice)
    *before, last = made.clauses
    return replace(made, clauses=(*before, _deepened(dice, last) if dice.chance(0.5) else last))


def _deepened(dice: Dice, main: Clause) -> Clause:
    """With a reason at the end of its last subordinate clause."""
    if main.tail:
        inner = _deepened(dice, main.tail.clause)
        return replace(main, tail=main.tail._replace(clause=inner))
    reason = _plain_clause(dice, 'past' if main.tense == 'past' else 'present')
    return replace(main, tail=Subordinate(dice.pick(('because', 'although')), reason))
