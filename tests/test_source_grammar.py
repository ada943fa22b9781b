"""The grammar source: German written by hand, and what each evaluation set holds."""

import hashlib
import re
from dataclasses import replace

import pytest

from experiments.data.grammar import english, german, held_out, lexicon
from experiments.data.grammar.german_phrases import phrase
from experiments.data.grammar.lexemes import Adverb
from experiments.data.grammar.lexicon import (
    ADJECTIVES,
    ADVERBS_OF_PLACE,
    BE,
    CLAUSE_VERBS,
    DETERMINERS,
    MODALS,
    NOUNS,
    PREPOSITIONS,
    SITES,
    THERE_BE,
    TOWN_PREPOSITIONS,
    VERBS,
    WEATHER,
)
from experiments.data.grammar.rng import Rng
from experiments.data.grammar.sample_sentences import long_sentence, sentence
from experiments.data.grammar.syntax import (
    Both,
    Clause,
    Comparison,
    Expletive,
    Interrogative,
    Name,
    NounPhrase,
    Prepositional,
    Pronoun,
    RelativePronoun,
    Sentence,
    Subordinate,
)
from experiments.data.sources import load
from experiments.data.sources.grammar import LONGEST, SHORTEST, Grammar

# ---- Trees from words
# ---------------------------------------------------------------------------

ME, YOU, HE, SHE = Pronoun('I'), Pronoun('you'), Pronoun('he', 'm'), Pronoun('she', 'f')
WE, THEY = Pronoun('we'), Pronoun('they')
ANNA, PETER = Name('Anna', 'f', 'Anna'), Name('Peter', 'm', 'Peter')
WHO, WHAT = Interrogative(True), Interrogative(False)
WHERE, WHERE_TO = Adverb('where', 'wo'), Adverb('where', 'wohin')
TIMES = {adverb.english: adverb for adverb in (*lexicon.TIMES, *lexicon.FREQUENCIES)}
MANNERS = {
    adverb.english: adverb for group in lexicon.MANNERS.values() for adverb in group
}
PLURALS = {noun.english_plural: noun for noun in NOUNS.values()}
ARTICLES = {
    form: d for d in DETERMINERS.values() for form in (d.english, d.english_plural)
}


def n(text: str, **parts) -> NounPhrase:
    """The noun phrase of a text: 'these old dogs'."""
    *before, noun = text.replace('how many', 'how_many').split()
    article = (
        before.pop(0).replace('_', ' ')
        if before and before[0] not in ADJECTIVES
        else ''
    )
    adjective = ADJECTIVES[before[0]] if before else None
    plural = noun not in NOUNS
    return NounPhrase(
        PLURALS[noun] if plural else NOUNS[noun],
        ARTICLES[article],
        plural,
        adjective,
        **parts,
    )


def it(noun: str) -> Pronoun:
    """'it', where that means the noun."""
    return Pronoun('it', NOUNS[noun].gender)


def its(thing: str, owner: str) -> NounPhrase:
    stem = {'m': 'sein', 'n': 'sein', 'f': 'ihr'}[NOUNS[owner].gender]
    return replace(
        n(thing), determiner=DETERMINERS['his']._replace(english='its', german=stem)
    )


def that(noun: str) -> RelativePronoun:
    """The relative pronoun for a noun."""
    return RelativePronoun(PLURALS.get(noun) or NOUNS[noun], noun in PLURALS)


def at(preposition: str, where) -> Prepositional:
    return Prepositional(
        PREPOSITIONS[preposition], n(where) if isinstance(where, str) else where
    )


def do(subject, verb: str, thing=None, to=None, **parts) -> Clause:
    """A clause. Texts stand for noun phrases, times, manners and modals; `to` is the
    recipient."""
    subject, thing, to = (
        n(x) if isinstance(x, str) else x for x in (subject, thing, to)
    )
    for name, table in {'time': TIMES, 'manner': MANNERS, 'modal': MODALS}.items():
        if isinstance(parts.get(name), str):
            parts[name] = table[parts[name]]
    found = (VERBS | WEATHER | {'be': BE})[verb]
    return Clause(subject, found, object=thing, recipient=to, **parts)


def be(subject, what, **parts) -> Clause:
    return do(
        subject,
        'be',
        predicate=ADJECTIVES[what] if isinstance(what, str) else what,
        **parts,
    )


def say(subject, verb: str, conjunction: str, what: Clause, **parts) -> Clause:
    """A clause whose verb takes a clause."""
    subject = n(subject) if isinstance(subject, str) else subject
    return Clause(
        subject, CLAUSE_VERBS[verb], tail=Subordinate(conjunction, what), **parts
    )


def ask(clause: Clause, front: str = 'verb') -> Sentence:
    return Sentence((replace(clause, front=front),), mood='question')


def request(verb: str, thing=None, please: bool = False, **parts) -> Sentence:
    return Sentence((do(YOU, verb, thing, **parts),), mood='request', please=please)


def join(first: Clause, joint: str, second: Clause) -> Sentence:
    return Sentence((first, second), (joint,))


def tail(main: Clause, conjunction: str, clause: Clause) -> Clause:
    return replace(main, tail=Subordinate(conjunction, clause))


def lead(main: Clause, conjunction: str, clause: Clause) -> Clause:
    return replace(main, lead=Subordinate(conjunction, clause))


RAIN = do(Expletive('it'), 'rain', tense='progressive')
TO_ROME = Prepositional(TOWN_PREPOSITIONS['to'], Name('Rome', 'n', 'Rom'))
GARDEN = {'place': at('in', 'the garden')}
TIME_FIRST, OBJECT_FIRST = {'front': 'time'}, {'front': 'object'}
HERE, OUTSIDE, AT_HOME, HOME = (
    ADVERBS_OF_PLACE[word] for word in ('here', 'outside', 'at home', 'home')
)


# ---- Phenomena: tree, English, and the German written by hand
# ------------------------------------

PAIRS = {
    'agreement of article, adjective and noun': [
        (do('the old dog', 'sleep'), 'The old dog sleeps.', 'Der alte Hund schläft.'),
        (do('a old dog', 'sleep'), 'An old dog sleeps.', 'Ein alter Hund schläft.'),
        (
            do('a small child', 'sleep'),
            'A small child sleeps.',
            'Ein kleines Kind schläft.',
        ),
        (do('old cats', 'sleep'), 'Old cats sleep.', 'Alte Katzen schlafen.'),
        (
            do(ME, 'see', 'the old dog'),
            'I see the old dog.',
            'Ich sehe den alten Hund.',
        ),
        (
            do(ME, 'see', 'a old house'),
            'I see an old house.',
            'Ich sehe ein altes Haus.',
        ),
        (
            do(HE, 'help', 'the old woman'),
            'He helps the old woman.',
            'Er hilft der alten Frau.',
        ),
        (do(HE, 'help', 'old women'), 'He helps old women.', 'Er hilft alten Frauen.'),
        (
            do(HE, 'help', 'the sick dogs'),
            'He helps the sick dogs.',
            'Er hilft den kranken Hunden.',
        ),
        (
            do(WE, 'drink', 'cold water'),
            'We drink cold water.',
            'Wir trinken kaltes Wasser.',
        ),
        (
            do(WE, 'buy', 'fresh cheese'),
            'We buy fresh cheese.',
            'Wir kaufen frischen Käse.',
        ),
        (
            do(ME, 'see', 'a dark room'),
            'I see a dark room.',
            'Ich sehe ein dunkles Zimmer.',
        ),
        (
            do(SHE, 'draw', 'the tall tree'),
            'She draws the tall tree.',
            'Sie zeichnet den hohen Baum.',
        ),
        (
            do('this young woman', 'love', 'every big dog'),
            'This young woman loves every big dog.',
            'Diese junge Frau liebt jeden großen Hund.',
        ),
        (
            do('all old men', 'thank', 'many good friends'),
            'All old men thank many good friends.',
            'Alle alten Männer danken vielen guten Freunden.',
        ),
        (
            do('some new books', 'belong to', 'two rich kings'),
            'Some new books belong to two rich kings.',
            'Einige neue Bücher gehören zwei reichen Königen.',
        ),
        (
            do('our old house', 'belong to', 'her good friend'),
            'Our old house belongs to her good friend.',
            'Unser altes Haus gehört ihrem guten Freund.',
        ),
        (
            do('these girls', 'like', 'my expensive coat'),
            'These girls like my expensive coat.',
            'Diese Mädchen mögen meinen teuren Mantel.',
        ),
    ],
    'weak masculine nouns': [
        (
            do('the boy', 'see', 'the bear'),
            'The boy sees the bear.',
            'Der Junge sieht den Bären.',
        ),
        (
            do('a student', 'help', 'my neighbour'),
            'A student helps my neighbour.',
            'Ein Student hilft meinem Nachbarn.',
        ),
        (
            do(ME, 'know', n('the brother', owner=n('the policeman'))),
            "I know the policeman's brother.",
            'Ich kenne den Bruder des Polizisten.',
        ),
    ],
    'owners': [
        (
            do(n('the dog', owner=n('the teacher')), 'sleep'),
            "The teacher's dog sleeps.",
            'Der Hund des Lehrers schläft.',
        ),
        (
            do(HE, 'repair', n('the old car', owner=n('my mother'))),
            "He repairs my mother's old car.",
            'Er repariert das alte Auto meiner Mutter.',
        ),
        (
            do(n('the big dog', owner=ANNA), 'follow', n('the horses', owner=PETER)),
            "Anna's big dog follows Peter's horses.",
            'Annas großer Hund folgt Peters Pferden.',
        ),
        (
            do(ME, 'find', n('the keys', owner=n('the guests'))),
            "I find the guests' keys.",
            'Ich finde die Schlüssel der Gäste.',
        ),
        (
            be(n('the hat', owner=n('the waitress')), 'red'),
            "The waitress's hat is red.",
            'Der Hut der Kellnerin ist rot.',
        ),
        (
            do(SHE, 'open', n('the window', owner=n('the house'))),
            'She opens the window of the house.',
            'Sie macht das Fenster des Hauses auf.',
        ),
    ],
    'the verb is second': [
        (
            do('the man', 'buy', 'a book', time='today', **TIME_FIRST),
            'Today the man buys a book.',
            'Heute kauft der Mann ein Buch.',
        ),
        (
            do('the child', 'read', front='place', **GARDEN),
            'In the garden the child reads.',
            'Im Garten liest das Kind.',
        ),
        (
            do(ME, 'get up', time='in the morning', manner='early', **TIME_FIRST),
            'In the morning I get up early.',
            'Am Morgen stehe ich früh auf.',
        ),
        (
            do('the woman', 'come back', tense='past', time='yesterday', **TIME_FIRST),
            'Yesterday the woman came back.',
            'Gestern ist die Frau zurückgekommen.',
        ),
        (
            lead(do('the man', 'stay', place=AT_HOME), 'if', RAIN),
            'If it is raining, the man stays at home.',
            'Wenn es regnet, bleibt der Mann zu Hause.',
        ),
    ],
    'the verb is last in subordinate clauses': [
        (
            tail(do('the man', 'sleep'), 'because', be(HE, 'tired')),
            'The man sleeps because he is tired.',
            'Der Mann schläft, weil er müde ist.',
        ),
        (
            say(ME, 'know', 'that', do('the boy', 'buy', 'a ball', tense='past')),
            'I know that the boy bought a ball.',
            'Ich weiß, dass der Junge einen Ball gekauft hat.',
        ),
        (
            say(
                SHE,
                'ask',
                'whether',
                do('the film', 'begin', time='today'),
                tense='past',
            ),
            'She asked whether the film begins today.',
            'Sie hat gefragt, ob der Film heute anfängt.',
        ),
        (
            lead(do(SHE, 'go', direction=HOME), 'although', RAIN),
            'Although it is raining, she goes home.',
            'Obwohl es regnet, geht sie nach Hause.',
        ),
        (
            lead(
                do(WE, 'laugh', tense='past'),
                'when',
                do('the doctor', 'arrive', tense='past'),
            ),
            'When the doctor arrived, we laughed.',
            'Als der Arzt angekommen ist, haben wir gelacht.',
        ),
        (
            tail(do(WE, 'laugh'), 'when', do('the doctor', 'sing', modal='have to')),
            'We laugh when the doctor has to sing.',
            'Wir lachen, wenn der Arzt singen muss.',
        ),
        (
            tail(do(HE, 'open', 'the letter'), 'before', do(SHE, 'wake up')),
            'He opens the letter before she wakes up.',
            'Er macht den Brief auf, bevor sie aufwacht.',
        ),
        (
            lead(do(ME, 'cook', 'rice'), 'while', do(YOU, 'bake', 'bread')),
            'While you bake bread, I cook rice.',
            'Während du Brot backst, koche ich Reis.',
        ),
    ],
    'relative clauses': [
        (
            do(n('the man', relative=be(that('man'), 'tired')), 'sleep'),
            'The man who is tired sleeps.',
            'Der Mann, der müde ist, schläft.',
        ),
        (
            do(
                ME,
                'know',
                n('the man', relative=do(ANNA, 'love', that('man'), **OBJECT_FIRST)),
            ),
            'I know the man whom Anna loves.',
            'Ich kenne den Mann, den Anna liebt.',
        ),
        (
            do(
                n('the women', relative=do(HE, 'help', that('women'), **OBJECT_FIRST)),
                'thank',
                Pronoun('he', 'm'),
            ),
            'The women whom he helps thank him.',
            'Die Frauen, denen er hilft, danken ihm.',
        ),
        (
            do(
                ME,
                'see',
                n(
                    'the child',
                    relative=do(
                        SHE, 'give', 'the apple', that('child'), front='recipient'
                    ),
                ),
            ),
            'I see the child to whom she gives the apple.',
            'Ich sehe das Kind, dem sie den Apfel gibt.',
        ),
        (
            do(
                n('the bus', relative=do(WE, 'wait for', that('bus'), **OBJECT_FIRST)),
                'arrive',
                tense='past',
            ),
            'The bus that we wait for arrived.',
            'Der Bus, auf den wir warten, ist angekommen.',
        ),
        (
            do(
                n('the aunt', relative=be(n('the dog', owner=that('aunt')), 'sick')),
                'cry',
            ),
            'The aunt whose dog is sick cries.',
            'Die Tante, deren Hund krank ist, weint.',
        ),
        (
            do(
                n('the man', relative=be(n('the car', owner=that('man')), 'new')),
                'laugh',
            ),
            'The man whose car is new laughs.',
            'Der Mann, dessen Auto neu ist, lacht.',
        ),
        (
            be(
                n(
                    'the village',
                    relative=do(
                        WE,
                        'live',
                        place=Prepositional(SITES['village'], that('village')),
                        front='place',
                    ),
                ),
                'small',
            ),
            'The village in which we live is small.',
            'Das Dorf, in dem wir wohnen, ist klein.',
        ),
        (
            do(
                PETER,
                'find',
                n(
                    'the keys',
                    relative=do(ME, 'lose', that('keys'), tense='past', **OBJECT_FIRST),
                ),
                tense='past',
            ),
            'Peter found the keys that I lost.',
            'Peter hat die Schlüssel gefunden, die ich verloren habe.',
        ),
        (
            do(HE, 'call', n('the lady', relative=do(that('lady'), 'work', **GARDEN))),
            'He calls the lady who works in the garden.',
            'Er ruft die Dame an, die im Garten arbeitet.',
        ),
    ],
    'separable verbs': [
        (do(HE, 'call', ANNA), 'He calls Anna.', 'Er ruft Anna an.'),
        (
            do(HE, 'call', ANNA, tense='past', time='yesterday'),
            'He called Anna yesterday.',
            'Er hat gestern Anna angerufen.',
        ),
        (
            do(HE, 'call', ANNA, modal='have to'),
            'He has to call Anna.',
            'Er muss Anna anrufen.',
        ),
        (
            say(ME, 'hope', 'that', do(HE, 'call', ANNA)),
            'I hope that he calls Anna.',
            'Ich hoffe, dass er Anna anruft.',
        ),
        (
            say(HE, 'forget', 'to', do(HE, 'turn off', 'the lamp'), tense='past'),
            'He forgot to turn off the lamp.',
            'Er hat vergessen, die Lampe auszuschalten.',
        ),
        (
            do(YOU, 'fall asleep', manner='late'),
            'You fall asleep late.',
            'Du schläfst spät ein.',
        ),
        (
            do(SHE, 'take part in', 'the game', tense='future'),
            'She will take part in the game.',
            'Sie wird am Spiel teilnehmen.',
        ),
        (
            do(YOU, 'throw away', it('bottle')),
            'You throw it away.',
            'Du wirfst sie weg.',
        ),
    ],
    'modal verbs and the future': [
        (
            do('the child', 'swim', modal='can'),
            'The child can swim.',
            'Das Kind kann schwimmen.',
        ),
        (
            do(THEY, 'sell', 'their house', modal='want to', tense='past'),
            'They wanted to sell their house.',
            'Sie wollten ihr Haus verkaufen.',
        ),
        (
            do(YOU, 'help', 'the nurse', modal='should'),
            'You should help the nurse.',
            'Du solltest der Krankenschwester helfen.',
        ),
        (
            do(ME, 'drink', 'tea', modal='would like to'),
            'I would like to drink tea.',
            'Ich möchte Tee trinken.',
        ),
        (
            do(WE, 'play', modal='be allowed to', negative=True, place=OUTSIDE),
            'We are not allowed to play outside.',
            'Wir dürfen nicht draußen spielen.',
        ),
        (
            do(HE, 'work', modal='have to', negative=True, time='today'),
            'He does not have to work today.',
            'Er muss heute nicht arbeiten.',
        ),
        (
            do(ANNA, 'travel', tense='future', direction=TO_ROME),
            'Anna will travel to Rome.',
            'Anna wird nach Rom reisen.',
        ),
    ],
    'the perfect': [
        (do(HE, 'sleep', tense='past'), 'He slept.', 'Er hat geschlafen.'),
        (do(SHE, 'swim', tense='past'), 'She swam.', 'Sie ist geschwommen.'),
        (
            do(WE, 'stay', tense='past', place=HERE),
            'We stayed here.',
            'Wir sind hier geblieben.',
        ),
        (
            do(YOU, 'repair', 'the car', tense='perfect'),
            'You have repaired the car.',
            'Du hast das Auto repariert.',
        ),
        (
            do(THEY, 'follow', 'the king', tense='past'),
            'They followed the king.',
            'Sie sind dem König gefolgt.',
        ),
        (
            tail(
                do(ME, 'smile', tense='past'), 'because', do(HE, 'get up', tense='past')
            ),
            'I smiled because he got up.',
            'Ich habe gelächelt, weil er aufgestanden ist.',
        ),
        (be(ME, 'sick', tense='past'), 'I was sick.', 'Ich war krank.'),
        (
            do(YOU, 'have', 'a question', tense='past'),
            'You had a question.',
            'Du hattest eine Frage.',
        ),
        (
            say(
                WE,
                'know',
                'that',
                do(SHE, 'like', 'cheese', tense='past'),
                tense='past',
            ),
            'We knew that she liked cheese.',
            'Wir wussten, dass sie Käse mochte.',
        ),
    ],
    'negation': [
        (
            do(ME, 'buy', 'the book', negative=True),
            'I do not buy the book.',
            'Ich kaufe das Buch nicht.',
        ),
        (
            do(ME, 'buy', 'a book', negative=True),
            'I do not buy a book.',
            'Ich kaufe kein Buch.',
        ),
        (
            do(SHE, 'eat', 'meat', negative=True),
            'She does not eat meat.',
            'Sie isst kein Fleisch.',
        ),
        (
            do(HE, 'have', 'big dogs', negative=True, tense='past'),
            'He did not have big dogs.',
            'Er hatte keine großen Hunde.',
        ),
        (
            do(HE, 'help', 'a thief', negative=True),
            'He does not help a thief.',
            'Er hilft keinem Dieb.',
        ),
        (
            do('no man', 'see', 'the wolf'),
            'No man sees the wolf.',
            'Kein Mann sieht den Wolf.',
        ),
        (
            be('the room', 'dark', negative=True),
            'The room is not dark.',
            'Das Zimmer ist nicht dunkel.',
        ),
        (
            be(PETER, n('a good teacher'), negative=True),
            'Peter is not a good teacher.',
            'Peter ist kein guter Lehrer.',
        ),
        (
            do(WE, 'sleep', negative=True, tense='past', **GARDEN),
            'We did not sleep in the garden.',
            'Wir haben nicht im Garten geschlafen.',
        ),
        (
            do(
                SHE,
                'run',
                manner='slowly',
                direction=at('into', 'the forest'),
                negative=True,
            ),
            'She does not run slowly into the forest.',
            'Sie läuft nicht langsam in den Wald.',
        ),
        (
            do(ME, 'wait for', 'the bus', negative=True, time='today'),
            'I do not wait for the bus today.',
            'Ich warte heute nicht auf den Bus.',
        ),
        (
            do(HE, 'close', 'the door', negative=True, tense='past'),
            'He did not close the door.',
            'Er hat die Tür nicht zugemacht.',
        ),
        (
            do(HE, 'close', 'the door', negative=True),
            'He does not close the door.',
            'Er macht die Tür nicht zu.',
        ),
        (
            do(HE, 'call', YOU, modal='can', negative=True),
            'He cannot call you.',
            'Er kann dich nicht anrufen.',
        ),
        (
            tail(
                do(ME, 'go', direction=HOME),
                'because',
                do(ME, 'know', 'the hotel', negative=True),
            ),
            'I go home because I do not know the hotel.',
            'Ich gehe nach Hause, weil ich das Hotel nicht kenne.',
        ),
        (
            Sentence(
                (replace(do(WE, 'buy', 'a lamp', negative=True), tense='future'),)
            ),
            'We will not buy a lamp.',
            'Wir werden keine Lampe kaufen.',
        ),
    ],
    'pronouns agree with what they stand for': [
        (
            tail(do(ANNA, 'buy', 'the table'), 'because', be(it('table'), 'cheap')),
            'Anna buys the table because it is cheap.',
            'Anna kauft den Tisch, weil er billig ist.',
        ),
        (
            tail(do(ANNA, 'buy', 'the lamp'), 'because', be(it('lamp'), 'cheap')),
            'Anna buys the lamp because it is cheap.',
            'Anna kauft die Lampe, weil sie billig ist.',
        ),
        (
            tail(do(ANNA, 'buy', 'the shirt'), 'because', be(it('shirt'), 'cheap')),
            'Anna buys the shirt because it is cheap.',
            'Anna kauft das Hemd, weil es billig ist.',
        ),
        (
            join(
                do(SHE, 'see', 'the frog'), 'but', do('the prince', 'kiss', it('frog'))
            ),
            'She sees the frog, but the prince kisses it.',
            'Sie sieht den Frosch, aber der Prinz küsst ihn.',
        ),
        (
            join(do(ME, 'feed', 'the cow'), 'and', do(ANNA, 'help', it('cow'))),
            'I feed the cow, and Anna helps it.',
            'Ich füttere die Kuh und Anna hilft ihr.',
        ),
        (
            lead(
                do(HE, 'forget', Pronoun('they')),
                'although',
                do(HE, 'need', 'the keys'),
            ),
            'Although he needs the keys, he forgets them.',
            'Obwohl er die Schlüssel braucht, vergisst er sie.',
        ),
        (
            do('the cat', 'drink', its('milk', 'cat')),
            'The cat drinks its milk.',
            'Die Katze trinkt ihre Milch.',
        ),
        (
            do('the dog', 'look for', its('ball', 'dog')),
            'The dog looks for its ball.',
            'Der Hund sucht seinen Ball.',
        ),
        (do(THEY, 'thank', WE), 'They thank us.', 'Sie danken uns.'),
        (do(WE, 'answer', THEY), 'We answer them.', 'Wir antworten ihnen.'),
        (do(ME, 'know', SHE), 'I know her.', 'Ich kenne sie.'),
        (do(YOU, 'trust', SHE), 'You trust her.', 'Du vertraust ihr.'),
    ],
    'reflexive verbs': [
        (do(ME, 'hurry'), 'I hurry.', 'Ich beeile mich.'),
        (
            do('the girl', 'look forward to', 'the party', time='today', **TIME_FIRST),
            'Today the girl looks forward to the party.',
            'Heute freut sich das Mädchen auf die Feier.',
        ),
        (
            say(HE, 'say', 'that', do(YOU, 'rest', tense='past')),
            'He says that you rested.',
            'Er sagt, dass du dich ausgeruht hast.',
        ),
        (
            say(WE, 'plan', 'to', do(WE, 'complain about', 'the hotel')),
            'We plan to complain about the hotel.',
            'Wir planen, uns über das Hotel zu beschweren.',
        ),
    ],
    'objects and their order': [
        (
            do(HE, 'give', 'a flower', 'the woman', tense='past'),
            'He gave the woman a flower.',
            'Er hat der Frau eine Blume gegeben.',
        ),
        (
            do(HE, 'show', 'the picture', SHE),
            'He shows her the picture.',
            'Er zeigt ihr das Bild.',
        ),
        (
            Sentence(
                (
                    do(SHE, 'find', 'the ring'),
                    do(SHE, 'give', it('ring'), 'the guest', elided=True),
                ),
                ('and',),
            ),
            'She finds the ring and gives it to the guest.',
            'Sie findet den Ring und gibt ihn dem Gast.',
        ),
        (do(ME, 'bring', THEY, HE), 'I bring them to him.', 'Ich bringe sie ihm.'),
        (
            do(WE, 'explain to', 'the game', 'the child', time='today'),
            'We explain the game to the child today.',
            'Wir erklären heute dem Kind das Spiel.',
        ),
        (
            do(ANNA, 'visit', HE, time='on Sunday', tense='future'),
            'Anna will visit him on Sunday.',
            'Anna wird ihn am Sonntag besuchen.',
        ),
        (
            do('the boy', 'listen to', 'the teacher', time='often'),
            'The boy often listens to the teacher.',
            'Der Junge hört oft dem Lehrer zu.',
        ),
        (
            do(SHE, 'buy', 'a hat', companion=at('for', 'her son')),
            'She buys a hat for her son.',
            'Sie kauft einen Hut für ihren Sohn.',
        ),
    ],
    'places and directions': [
        (
            do('the letter', 'lie', place=at('on', 'the table')),
            'The letter lies on the table.',
            'Der Brief liegt auf dem Tisch.',
        ),
        (
            do(HE, 'place', 'the bottle', direction=at('on', 'the table')),
            'He places the bottle on the table.',
            'Er stellt die Flasche auf den Tisch.',
        ),
        (
            do(
                ME,
                'put',
                'the book',
                direction=at('next to', 'the bed'),
                tense='perfect',
            ),
            'I have put the book next to the bed.',
            'Ich habe das Buch neben das Bett gelegt.',
        ),
        (
            do(WE, 'go', direction=at('into', 'the cinema')),
            'We go into the cinema.',
            'Wir gehen ins Kino.',
        ),
        (
            do(WE, 'go', direction=at('into', 'the church')),
            'We go into the church.',
            'Wir gehen in die Kirche.',
        ),
        (
            do(YOU, 'drive', direction=at('to', 'the station')),
            'You drive to the station.',
            'Du fährst zum Bahnhof.',
        ),
        (
            do(YOU, 'run', direction=at('to', 'the old bridge')),
            'You run to the old bridge.',
            'Du läufst zur alten Brücke.',
        ),
        (
            do(SHE, 'come', direction=at('from', 'the market'), tense='past'),
            'She came from the market.',
            'Sie ist vom Markt gekommen.',
        ),
        (
            do('the mouse', 'come', direction=at('out of', 'the cellar')),
            'The mouse comes out of the cellar.',
            'Die Maus kommt aus dem Keller.',
        ),
        (
            do(
                'the children',
                'play',
                place=Prepositional(SITES['street'], n('the street')),
            ),
            'The children play on the street.',
            'Die Kinder spielen auf der Straße.',
        ),
        (
            do(ME, 'wait', place=Prepositional(SITES['airport'], n('the airport'))),
            'I wait at the airport.',
            'Ich warte am Flughafen.',
        ),
        (
            do(WE, 'run', direction=at('through', 'the forest')),
            'We run through the forest.',
            'Wir laufen durch den Wald.',
        ),
        (
            do(
                ME,
                'work',
                place=at(
                    'in',
                    n(
                        'the house',
                        relative=do(
                            HE, 'build', that('house'), tense='past', **OBJECT_FIRST
                        ),
                    ),
                ),
            ),
            'I work in the house that he built.',
            'Ich arbeite in dem Haus, das er gebaut hat.',
        ),
    ],
    'comparison': [
        (
            be('the dog', Comparison(ADJECTIVES['big'], n('the cat'))),
            'The dog is bigger than the cat.',
            'Der Hund ist größer als die Katze.',
        ),
        (
            be(
                'this coat',
                Comparison(ADJECTIVES['expensive'], n('the shoes')),
                negative=True,
            ),
            'This coat is not more expensive than the shoes.',
            'Dieser Mantel ist nicht teurer als die Schuhe.',
        ),
        (
            be('the trees', Comparison(ADJECTIVES['tall'], n('the tree'))),
            'The trees are taller than the tree.',
            'Die Bäume sind höher als der Baum.',
        ),
        (
            be(HE, Comparison(ADJECTIVES['sick'], n('the boy'))),
            'He is sicker than the boy.',
            'Er ist kränker als der Junge.',
        ),
        (
            be(ME, Comparison(ADJECTIVES['old'], HE, equal=True)),
            'I am as old as him.',
            'Ich bin so alt wie er.',
        ),
        (
            be(ANNA, Comparison(ADJECTIVES['clever'], THEY), tense='past'),
            'Anna was cleverer than them.',
            'Anna war klüger als sie.',
        ),
    ],
    'there is': [
        (
            Clause(Expletive('there'), THERE_BE, object=n('a bear'), **GARDEN),
            'There is a bear in the garden.',
            'Es gibt einen Bären im Garten.',
        ),
        (
            Clause(
                Expletive('there'),
                THERE_BE,
                'past',
                object=n('no chairs'),
                front='place',
                **GARDEN,
            ),
            'In the garden there were no chairs.',
            'Im Garten gab es keine Stühle.',
        ),
    ],
    'questions': [
        (
            ask(do(YOU, 'know', 'the song')),
            'Do you know the song?',
            'Kennst du das Lied?',
        ),
        (
            ask(do('the train', 'depart', tense='perfect')),
            'Has the train departed?',
            'Ist der Zug abgefahren?',
        ),
        (ask(be(SHE, 'happy')), 'Is she happy?', 'Ist sie glücklich?'),
        (ask(do(WHO, 'laugh'), 'subject'), 'Who laughs?', 'Wer lacht?'),
        (
            ask(do('the nurse', 'call', WHO, tense='past'), 'object'),
            'Whom did the nurse call?',
            'Wen hat die Krankenschwester angerufen?',
        ),
        (ask(do(HE, 'thank', WHO), 'object'), 'Whom does he thank?', 'Wem dankt er?'),
        (ask(do(YOU, 'eat', WHAT), 'object'), 'What do you eat?', 'Was isst du?'),
        (
            ask(do(SHE, 'wait for', WHO), 'object'),
            'Whom does she wait for?',
            'Auf wen wartet sie?',
        ),
        (
            ask(do(YOU, 'lend', 'the car', WHO, tense='future'), 'recipient'),
            'To whom will you lend the car?',
            'Wem wirst du das Auto leihen?',
        ),
        (
            ask(do(HE, 'try on', 'which coat'), 'object'),
            'Which coat does he try on?',
            'Welchen Mantel probiert er an?',
        ),
        (
            ask(do(WE, 'see', 'how many white birds'), 'object'),
            'How many white birds do we see?',
            'Wie viele weiße Vögel sehen wir?',
        ),
        (
            ask(do(THEY, 'live', place=WHERE), 'place'),
            'Where do they live?',
            'Wo wohnen sie?',
        ),
        (
            ask(do(THEY, 'drive', direction=WHERE_TO), 'direction'),
            'Where do they drive?',
            'Wohin fahren sie?',
        ),
        (
            ask(
                do(ANNA, 'cry', time=Adverb('why', 'warum'), tense='progressive'),
                'time',
            ),
            'Why is Anna crying?',
            'Warum weint Anna?',
        ),
        (
            Sentence(
                (
                    say(
                        YOU,
                        'know',
                        'whether',
                        do(HE, 'come back', tense='future'),
                        front='verb',
                    ),
                ),
                mood='question',
            ),
            'Do you know whether he will come back?',
            'Weißt du, ob er zurückkommen wird?',
        ),
    ],
    'requests': [
        (request('open', 'the window'), 'Open the window.', 'Mach das Fenster auf.'),
        (
            request('give', 'the key', please=True, to=ME),
            'Please give me the key.',
            'Bitte gib mir den Schlüssel.',
        ),
        (
            request('laugh at', 'the child', negative=True),
            'Do not laugh at the child.',
            'Lach nicht über das Kind.',
        ),
        (request('wait'), 'Wait.', 'Warte.'),
        (
            request('read', 'a book', negative=True),
            'Do not read a book.',
            'Lies kein Buch.',
        ),
        (request('hurry', please=True), 'Please hurry.', 'Bitte beeil dich.'),
    ],
    'infinitives': [
        (
            say(PETER, 'try', 'to', do(PETER, 'catch', 'the ball')),
            'Peter tries to catch the ball.',
            'Peter versucht, den Ball zu fangen.',
        ),
        (
            tail(
                do(SHE, 'go', direction=at('into', 'the city'), tense='past'),
                'in order to',
                do(SHE, 'pick up', 'her brother'),
            ),
            'She went into the city in order to pick up her brother.',
            'Sie ist in die Stadt gegangen, um ihren Bruder abzuholen.',
        ),
        (
            say(
                'the guests',
                'begin',
                'to',
                do('the guests', 'dance', **GARDEN),
                tense='past',
            ),
            'The guests began to dance in the garden.',
            'Die Gäste haben angefangen, im Garten zu tanzen.',
        ),
    ],
    'joined clauses': [
        (
            join(do(ME, 'sing'), 'and', do(YOU, 'dance')),
            'I sing, and you dance.',
            'Ich singe und du tanzt.',
        ),
        (
            join(
                do(HE, 'look for', 'the cap'),
                'but',
                do(HE, 'find', it('cap'), negative=True, elided=True),
            ),
            'He looks for the cap but does not find it.',
            'Er sucht die Mütze, aber findet sie nicht.',
        ),
        (
            join(
                tail(do(HE, 'sleep'), 'because', be(HE, 'tired')),
                'and',
                do(SHE, 'read', 'a novel'),
            ),
            'He sleeps because he is tired, and she reads a novel.',
            'Er schläft, weil er müde ist, und sie liest einen Roman.',
        ),
        (
            do(Both(ANNA, n('the doctor')), 'laugh'),
            'Anna and the doctor laugh.',
            'Anna und der Arzt lachen.',
        ),
    ],
    'English forms': [
        (do(HE, 'go', direction=HOME), 'He goes home.', 'Er geht nach Hause.'),
        (
            do(HE, 'tidy up', 'the cellar'),
            'He tidies up the cellar.',
            'Er räumt den Keller auf.',
        ),
        (do(HE, 'watch', 'a film'), 'He watches a film.', 'Er schaut einen Film an.'),
        (do(ME, 'eat', 'a egg'), 'I eat an egg.', 'Ich esse ein Ei.'),
        (
            do(ME, 'find', 'a useful book'),
            'I find a useful book.',
            'Ich finde ein nützliches Buch.',
        ),
        (
            do(THEY, 'lie', tense='progressive', place=at('under', 'the tree')),
            'They are lying under the tree.',
            'Sie liegen unter dem Baum.',
        ),
        (
            do(WE, 'swim', tense='progressive', time='now'),
            'We are swimming now.',
            'Wir schwimmen jetzt.',
        ),
        (
            be('the wolves', 'hungry', time='always'),
            'The wolves are always hungry.',
            'Die Wölfe sind immer hungrig.',
        ),
    ],
}
CASES = [
    pytest.param(*case, id=f'{phenomenon}: {case[1]}')
    for phenomenon, cases in PAIRS.items()
    for case in cases
]


@pytest.mark.parametrize(('tree', 'in_english', 'in_german'), CASES)
def test_phenomena(tree, in_english, in_german):
    tree = Sentence((tree,)) if isinstance(tree, Clause) else tree
    assert (english.sentence(tree), german.sentence(tree)) == (in_english, in_german)


# ---- Forms of words
# -----------------------------------------------------------------------------

# Nominative, accusative, dative, genitive.
DECLENSIONS = """
the big man: der große Mann, den großen Mann, dem großen Mann, des großen Mannes
the big men: die großen Männer, die großen Männer, den großen Männern, der großen Männer
a rich woman: eine reiche Frau, eine reiche Frau, einer reichen Frau, einer reichen Frau
many old cows: viele alte Kühe, viele alte Kühe, vielen alten Kühen, vieler alter Kühe
no good child: kein gutes Kind, kein gutes Kind, keinem guten Kind, keines guten Kindes
no old eggs: keine alten Eier, keine alten Eier, keinen alten Eiern, keiner alten Eier
this student: dieser Student, diesen Studenten, diesem Studenten, dieses Studenten
my neighbour: mein Nachbar, meinen Nachbarn, meinem Nachbarn, meines Nachbarn
the lions: die Löwen, die Löwen, den Löwen, der Löwen
a farmer: ein Bauer, einen Bauern, einem Bauern, eines Bauern
every house: jedes Haus, jedes Haus, jedem Haus, jedes Hauses
all houses: alle Häuser, alle Häuser, allen Häusern, aller Häuser
our car: unser Auto, unser Auto, unserem Auto, unseres Autos
your cars: deine Autos, deine Autos, deinen Autos, deiner Autos
her mother: ihre Mutter, ihre Mutter, ihrer Mutter, ihrer Mutter
his daughters: seine Töchter, seine Töchter, seinen Töchtern, seiner Töchter
the bus: der Bus, den Bus, dem Bus, des Busses
the park: der Park, den Park, dem Park, des Parks
the secret: das Geheimnis, das Geheimnis, dem Geheimnis, des Geheimnisses
the queens: die Königinnen, die Königinnen, den Königinnen, der Königinnen
the museums: die Museen, die Museen, den Museen, der Museen
which table: welcher Tisch, welchen Tisch, welchem Tisch, welches Tisches
three white geese: drei weiße Gänse, drei weiße Gänse, drei weißen Gänsen, drei weißer Gänse
"""  # noqa: E501


@pytest.mark.parametrize('row', DECLENSIONS.strip().splitlines())
def test_declension(row):
    text, forms = row.split(': ')
    declined = [
        ' '.join(phrase(n(text), case)) for case in ('nom', 'acc', 'dat', 'gen')
    ]
    assert declined == forms.split(', ')


def test_strong_endings_of_what_is_not_counted():
    cases = ('nom', 'acc', 'dat')
    table = {
        'cold milk': 'kalte Milch, kalte Milch, kalter Milch',
        'hot coffee': 'heißer Kaffee, heißen Kaffee, heißem Kaffee',
        'good bread': 'gutes Brot, gutes Brot, gutem Brot',
    }
    for text, forms in table.items():
        assert ', '.join(' '.join(phrase(n(text), case)) for case in cases) == forms


# ich, du, er, wir; the participle, with its auxiliary; the request to a friend.
CONJUGATIONS = """
sleep: schlafe schläfst schläft schlafen hat geschlafen schlaf
read: lese liest liest lesen hat gelesen lies
eat: esse isst isst essen hat gegessen iss
give: gebe gibst gibt geben hat gegeben gib
see: sehe siehst sieht sehen hat gesehen sieh
take: nehme nimmst nimmt nehmen hat genommen nimm
throw away: werfe wirfst wirft werfen hat weggeworfen wirf
help: helfe hilfst hilft helfen hat geholfen hilf
run: laufe läufst läuft laufen ist gelaufen lauf
drive: fahre fährst fährt fahren ist gefahren fahr
hold: halte hältst hält halten hat gehalten halte
invite: lade lädst lädt laden hat eingeladen lade
wash: wasche wäschst wäscht waschen hat gewaschen wasch
work: arbeite arbeitest arbeitet arbeiten hat gearbeitet arbeite
find: finde findest findet finden hat gefunden finde
draw: zeichne zeichnest zeichnet zeichnen hat gezeichnet zeichne
tidy up: räume räumst räumt räumen hat aufgeräumt räum
dance: tanze tanzt tanzt tanzen hat getanzt tanz
kiss: küsse küsst küsst küssen hat geküsst küss
travel: reise reist reist reisen ist gereist reise
smile: lächle lächelst lächelt lächeln hat gelächelt lächle
feed: füttere fütterst füttert füttern hat gefüttert füttere
repair: repariere reparierst repariert reparieren hat repariert repariere
sell: verkaufe verkaufst verkauft verkaufen hat verkauft verkauf
get up: stehe stehst steht stehen ist aufgestanden steh
arrive: komme kommst kommt kommen ist angekommen komm
"""


@pytest.mark.parametrize('row', CONJUGATIONS.strip().splitlines())
def test_conjugation(row):
    english_verb, forms = row.split(': ')
    verb = VERBS[english_verb].german
    auxiliary = {'haben': 'hat', 'sein': 'ist'}[verb.auxiliary]
    made = [*verb.present[:4], auxiliary, verb.participle, verb.imperative]
    assert made == forms.split()


def test_modal_and_irregular_present():
    assert MODALS['can'].german.present == (
        'kann',
        'kannst',
        'kann',
        'können',
        'können',
    )
    assert MODALS['have to'].german.present == (
        'muss',
        'musst',
        'muss',
        'müssen',
        'müssen',
    )
    assert CLAUSE_VERBS['know'].german.present == (
        'weiß',
        'weißt',
        'weiß',
        'wissen',
        'wissen',
    )
    assert VERBS['like'].german.present == ('mag', 'magst', 'mag', 'mögen', 'mögen')


@pytest.mark.parametrize(
    ('base', 'forms'),
    [
        ('cry', 'cries cried cried crying'),
        ('travel', 'travels travelled travelled travelling'),
        ('begin', 'begins began begun beginning'),
        ('lie', 'lies lay lain lying'),
        ('write', 'writes wrote written writing'),
        ('see', 'sees saw seen seeing'),
        ('watch', 'watches watched watched watching'),
        ('play', 'plays played played playing'),
    ],
)
def test_english_verbs(base, forms):
    verb = VERBS[base].english
    assert [
        verb.present[2],
        verb.past[2],
        verb.participle,
        verb.gerund,
    ] == forms.split()


def test_irregular_english_plurals():
    plurals = 'men children mice geese knives thieves cities boxes'.split()
    plurals += ['photos', 'potatoes', 'keys']
    nouns = 'man child mouse goose knife thief city box photo potato key'.split()
    assert [NOUNS[noun].english_plural for noun in nouns] == plurals


def syllables(word: str) -> int:
    return len(re.findall('[aeiouy]+', re.sub('[^aeiouy]e$', '', word)))


@pytest.mark.parametrize(
    'adjective', [a for a in ADJECTIVES.values() if a.english_more], ids=lambda a: a[0]
)
def test_short_english_adjectives_are_compared_by_an_ending(adjective):
    """One syllable, or two of which the last is -y: -er. Else 'more', or -er as in
    cleverer."""
    word, more = adjective.english, adjective.english_more
    stem = re.sub('y$', 'i', word.removesuffix('e'))
    short = {'good': {'better'}}.get(word, {f'{stem}er', f'{stem}{stem[-1]}er'})
    is_short = syllables(word) == 1 or (syllables(word) == 2 and word.endswith('y'))
    assert more in (short if is_short else short | {f'more {word}'})


@pytest.mark.parametrize(
    ('adjective', 'suits', 'not_so'),
    [
        ('tall', 'tree', 'mountain wall bridge man'),
        ('high', 'mountain wall bridge', 'tree man church'),
        ('big', 'tree dog house', 'man woman child'),  # whom German calls groß, too
        ('sweet', 'apple tea', 'potato meat sausage water'),  # Süßkartoffel, Süßwasser
        ('long', 'coat river film', 'hat cap shoe'),
        ('difficult', 'question game', 'dream secret mistake story'),
        ('easy', 'question game', 'dream secret mistake story'),
        ('new', 'film game', 'party'),
    ],
)
def test_adjectives_are_said_of_what_they_are_said_of(adjective, suits, not_so):
    kinds = ADJECTIVES[adjective].kinds
    assert set(suits.split()) <= kinds
    assert not kinds & set(not_so.split())


# ---- The sets
# -----------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def default() -> Grammar:
    return Grammar()


@pytest.fixture(scope='module')
def train(default) -> list[tuple[str, str]]:
    return list(default.train())


def words(text: str) -> list[str]:
    return re.sub('[.,?]', '', text.lower()).split()


def vocabulary(pairs, side: int) -> set[str]:
    return {word for pair in pairs for word in words(pair[side])}


def test_nothing_that_is_evaluated_is_trained_on_in_either_language(default, train):
    sets = {'train': train} | default.evaluation()
    for side in (0, 1):
        texts = [pair[side] for pairs in sets.values() for pair in pairs]
        assert len(texts) == len(set(texts))


def test_sizes_and_lengths(default, train):
    sets = default.evaluation()
    assert list(sets) == ['val', 'test', 'long', 'compositional']
    assert [len(pairs) for pairs in sets.values()] == [200, 500, 200, 200]
    assert len(train) == 20_000
    lengths = [len(side.split()) for pair in train for side in pair]
    assert SHORTEST <= min(lengths) and max(lengths) <= LONGEST
    assert min(len(side.split()) for pair in sets['long'] for side in pair) > LONGEST


def test_a_sentence_has_one_translation():
    translations: dict[str, str] = {}
    dice = Rng(7)
    for tree in ((sentence, long_sentence)[i % 2](dice) for i in range(8_000)):
        in_german = german.sentence(tree)
        assert translations.setdefault(english.sentence(tree), in_german) == in_german


def test_sentences_are_written_as_sentences(train):
    for pair in train:
        for side in pair:
            assert re.fullmatch(r"[A-ZÄÖÜ][\w ,'-]*[.?]", side), side
            assert not re.search(r' ,|,,|  |,[^ ]', side), side
        assert (pair[0][-1] == '?') == (pair[1][-1] == '?')


def test_evaluation_uses_only_words_of_training(default, train):
    known = [vocabulary(train, side) for side in (0, 1)]
    for name, pairs in default.evaluation().items():
        for side, share in ((0, 0.999), (1, 0.995)):
            used = [word for pair in pairs for word in words(pair[side])]
            assert sum(word in known[side] for word in used) >= share * len(used), name


# What shows a construction in the text, with the word in the place of X. Independent of
# the trees.
_MINE = '(my|your|his|its|our|their)'
SIGNS = {
    'relative clause': (0, r'\bX (who|whom|whose|that|to whom|(in|on|at) which)\b'),
    'possessive': (0, rf'\b{_MINE} (\w+ )?X\b'),
    'modal verb': (
        0,
        r'\b(can|cannot|could|should|(want|wanted|would like|allowed|have) to) X\b',
    ),
    'negation': (0, r'\bnot ((want|have|like|allowed) to )?X\b'),
    'perfect, verb last': (1, r'\bX (habe|hast|hat|haben|bin|bist|ist|sind)\b'),
    'question': (0, r'^(do|does|did|will|can) (the|a|my|your) (\w+ )?\w+ X\b[^,]*\?'),
    'adjective in the dative': (1, r'\b(\w*em|im|am|zum|vom) \w+en X\b'),
}


def forms_of(construction: str, word: str) -> list[str]:
    """What may stand in the place of X; none where a word's dative cannot be told from
    the text."""
    if construction == 'perfect, verb last':
        return [v.german.participle for v in VERBS.values() if v.english.base == word]
    if construction == 'adjective in the dative':
        noun = NOUNS[word]
        return [] if noun.gender == 'f' else [noun.german[False, 'dat']]
    if word in NOUNS and construction in ('relative clause', 'possessive'):
        return [NOUNS[word].english, NOUNS[word].english_plural]
    return sorted(
        {
            f
            for v in VERBS.values()
            if v.english.base == word
            for f in (word, v.english.gerund)
        }
    )


@pytest.mark.parametrize('construction', held_out.HELD_OUT)
def test_pairs_held_out_are_not_trained_but_their_parts_are(
    construction, default, train
):
    side, sign = SIGNS[construction]
    held = held_out.HELD_OUT[construction].split()
    forms = [form for word in held for form in forms_of(construction, word)]
    shown = re.compile(sign.replace('X', f'({"|".join(forms)})'), re.IGNORECASE)
    assert not [pair for pair in train if shown.search(pair[side])]
    assert [
        pair
        for pair in default.evaluation()['compositional']
        if shown.search(pair[side])
    ]
    anything = re.compile(sign.replace('X', r'\w+'), re.IGNORECASE)
    assert sum(bool(anything.search(pair[side])) for pair in train) > 50
    assert set(held) <= vocabulary(train, 0)


def test_each_compositional_sentence_has_a_pair_held_out():
    dice = Rng(3)
    trees = [sentence(dice) for _ in range(2_000)]
    seen = {pair for tree in trees for pair in held_out.constructions(tree)}
    for construction, text in held_out.HELD_OUT.items():
        assert {c for c, _ in seen if c == construction}
        assert set(text.split()) <= set(NOUNS) | {
            v.english.base for v in VERBS.values()
        }


def test_the_text_is_the_same_everywhere(default, train):
    """If the grammar was changed on purpose, put in the digest that the failure
    shows."""
    sets = {'train': train} | default.evaluation()
    lines = ['\t'.join(pair) for pairs in sets.values() for pair in pairs]
    digest = hashlib.sha256('\n'.join(lines).encode()).hexdigest()
    assert digest[:16] == '7d7c33a80b7c237b'


def test_fewer_pairs_are_the_first_of_more_and_evaluation_stays(default, train):
    few = Grammar(pairs=150)
    assert list(few.train()) == train[:150]
    assert few.evaluation() == default.evaluation()


def test_seeds_and_digests_differ(default):
    other = Grammar(seed=1)
    assert other.evaluation()['test'] != default.evaluation()['test']
    assert len({default.digest(), other.digest(), Grammar(pairs=500).digest()}) == 3
    assert default.digest() == Grammar().digest()


def test_made_by_its_spec():
    source = load('grammar(seed=2, pairs=300)')
    assert (source.seed, source.pairs, source.source, source.target) == (
        2,
        300,
        'en',
        'de',
    )


@pytest.mark.parametrize(
    'fields', [{'pairs': 99}, {'pairs': 10**7}, {'pairs': 1e4}, {'seed': -1}]
)
def test_bad_fields(fields):
    (name, value), *_ = fields.items()
    with pytest.raises(
        ValueError, match=f'{name} must be .* not {re.escape(repr(value))}'
    ):
        Grammar(**fields)
