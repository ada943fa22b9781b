"""Words other than nouns and verbs, and the prepositional phrases of verbs."""

# English (/comparative, or else 'more …'; /- if it has none), German (/comparative, or
# else -er): the nouns that it suits.
ADJECTIVES = """
old/older alt/älter: person animal goods text building landscape plant
young/younger jung/jünger: person animal
big/bigger groß/größer: animal thing furniture vehicle building room landscape plant instrument
small/smaller klein/kleiner: child animal thing furniture vehicle building room landscape plant
good/better gut/besser: food drink media sound teacher doctor student friend singer answer
beautiful schön: woman animal goods building landscape plant sound
ugly/uglier hässlich: goods building
new/newer neu: goods text building film game
expensive teuer: goods food drink
cheap/cheaper billig: goods food drink
heavy/heavier schwer: thing furniture machine
light/lighter leicht: thing garment
clean/cleaner sauber: garment vehicle room street
dirty/dirtier schmutzig: garment vehicle room pet street
broken/- kaputt: machine furniture vehicle part
long/longer lang/länger: media coat shirt dress jacket scarf glove street bridge
    river
short/shorter kurz/kürzer: media coat shirt dress jacket scarf glove answer
red/- rot: goods part plant
blue/- blau: goods part
green/- grün: goods part
yellow/- gelb: goods part plant
black/- schwarz: animal goods part
white/- weiß: animal goods part
happy/happier glücklich: person
sad/sadder traurig: person sound story film
tired müde: person animal
sick/sicker krank/kränker: person animal
healthy/healthier gesund/gesünder: person animal food
rich/richer reich: person
poor/poorer arm/ärmer: person
friendly/friendlier freundlich: person
famous berühmt: person picture building novel
clever/cleverer klug/klüger: person pet monkey fox answer
strong/stronger stark/stärker: man animal
honest ehrlich: person answer
lazy/lazier faul: person pet
angry/angrier wütend: person
hungry/hungrier hungrig: person animal
wild/- wild: beast horse
dangerous gefährlich: beast street bridge river game
fresh/fresher frisch: food milk
sweet/sweeter süß: apple cake banana orange strawberry tomato chocolate milk tea
    coffee wine
warm/warmer warm/wärmer: water milk soup garment room
cold/colder kalt/kälter: drink soup room lake river
hot/hotter heiß: soup tea coffee water meat
delicious lecker: food drink
interesting interessant: media thought building
boring langweilig: media music
funny/funnier lustig: media story song dream
important wichtig: text thought
difficult schwierig: question problem word answer game
easy/easier einfach: question problem word answer game
quiet/quieter ruhig: building landscape child
dark/darker dunkel: room forest street
high/higher hoch/höher: mountain wall bridge
tall/taller hoch/höher: tree
useful nützlich: thing machine book answer
empty/- leer: bottle glass box basket street room
"""

# English: German; the tenses that it suits, or nothing for all.
TIMES = """
today: heute
now: jetzt; present progressive
yesterday: gestern; past
tomorrow: morgen; future
on Monday: am Montag; past future
on Wednesday: am Mittwoch; past future
on Friday: am Freitag; past future
on Sunday: am Sonntag; past future
in the morning: am Morgen; present past future
in the evening: am Abend; present past future
at night: in der Nacht; present past
in summer: im Sommer; present past future
in winter: im Winter; present past future
every day: jeden Tag; present past
last week: letzte Woche; past
next week: nächste Woche; future
before breakfast: vor dem Frühstück; present past future
"""
FREQUENCIES = (
    'often oft, always immer, sometimes manchmal, usually meistens, rarely selten'
)

MANNERS = {
    'loud': 'loudly laut, quietly leise',
    'speed': 'slowly langsam, quickly schnell',
    'care': 'carefully vorsichtig',
    'how': 'alone allein, slowly langsam, carefully vorsichtig',
    'hour': 'early früh, late spät',
}

# English, German and the case, unless it depends on place or direction.
PREPOSITIONS = """
in: in
into: in
at: an
on: auf
onto: auf
under: unter
behind: hinter
in front of: vor
next to: neben
over: über acc
across: über acc
through: durch acc
for: für acc
with: mit dat
to: zu dat
from: von dat
out of: aus dat
"""
ADVERBS_OF_PLACE = """
here: hier
there: dort
outside: draußen
at home: zu Hause
home: nach Hause
"""

# Locations: the English and German prepositions that each noun requires.
SITES = """
in in: kitchen cellar office house school church hotel restaurant shop hospital museum library
    bakery castle cinema garden city village park forest
at an: station airport beach lake river
on auf: street bridge meadow island mountain
at auf: market
"""

# Adjuncts of verbs, by the name in the verb's line: an English preposition and its
# nouns, or an adverb. 'site' uses each noun's own preposition, and 'inside' only nouns
# with 'in'.
PLACES = """
anywhere: site building landscape kitchen office; here; there; outside; at home
outdoors: site landscape; outside
homes: site house castle city village hotel island street; here; there; in towns
goals: site station airport hotel beach market lake island castle; here; in towns
shops: site shop market city village; in towns
meals: site kitchen restaurant hotel garden park cinema school meadow; outside; at home
seats: on chair sofa bench; under tree; next to person window; in front of house; outside
beds: on bed table sofa chair bench; under bed table sofa chair; next to lamp mirror bottle
cities: in towns
near: in front of building door; behind house tree church; next to person vehicle tree
"""
DIRECTIONS = """
whither: into inside; to spots person; through park forest city; across street bridge meadow; home
roads: into city village forest; to spots; through city forest; across bridge; home; to towns
towns: to towns
whence: out of inside; from spots; from towns
onto: onto table chair sofa bench wall; over wall
down: on table bed chair bench; under table bed chair; next to lamp mirror bed; in front of door
"""

# English (/plural), German stem, and the pattern of its and its adjective's endings.
DETERMINERS = """
the: - der
a: ein ein
-: - none
no: kein ein
my: mein ein
your: dein ein
his: sein ein
her: ihr ein
our: unser ein
their: ihr ein
this/these: dies dieser
every: jed dieser
which: welch dieser
all: all dieser
many: viel viele
some: einig viele
two: zwei none
three: drei none
four: vier none
five: fünf none
ten: zehn none
how many: wie_viel viele
"""

CONJUNCTIONS = {
    'because': 'weil',
    'although': 'obwohl',
    'if': 'wenn',
    'while': 'während',
    'before': 'bevor',
    'that': 'dass',
    'whether': 'ob',
    'when': 'wenn',
    'and': 'und',
    'but': 'aber',
}

NAMES = {
    'f': 'Anna Maria Julia Sophie Emma Laura Lena',
    'm': 'Peter Paul David Martin Tom Simon Leon',
}
TOWNS = 'Berlin Berlin, Hamburg Hamburg, Munich München, Vienna Wien, Rome Rom'
