"""The verbs, one per line: English; German; objects; adjuncts and notes; subjects.

English: base form, and past and participle if irregular. In brackets: +particle, and
the preposition before the object. German: infinitive (· after a separable prefix),
third person if irregular, participle (after `ist` if the perfect uses sein), then the
object's case or preposition. `past=` gives the preterite if it is the usual past.
Objects and subjects are kinds of nouns, groups of kinds, or single nouns. Subjects
default to persons.

Adjuncts: places, directions and manners by their names in `words` (! if required), and
`with` or `for` somebody. Notes: `alone`, the object is optional; `person`, a recipient
in the dative; `state`, never progressive; `chance`, not intentional, so neither in
requests nor with modal verbs.
"""

GROUPS = {
    'person': 'man woman child',
    'animal': 'pet beast',
    'goods': 'thing machine instrument garment furniture vehicle',
    'media': 'text entertainment',
}

VERBS = """
sleep slept; schlafen schläft geschlafen; ; anywhere; person animal
work; arbeiten gearbeitet; ; anywhere how with
laugh; lachen gelacht; ; loud
cry; weinen geweint; ; loud
smile; lächeln gelächelt
dance; tanzen getanzt; ; anywhere with
swim swam swum; schwimmen ist geschwommen; ; speed with; person duck dog goose
wait; warten gewartet; ; anywhere; person dog
live; wohnen gewohnt; ; homes! state
stay; bleiben ist geblieben; ; anywhere! with
sit sat; sitzen gesessen; ; seats! chance; person pet
stand stood; stehen gestanden; ; near! chance; person animal vehicle
lie lay lain; liegen gelegen; ; beds! chance; text thing garment dog cat
run ran run; laufen läuft ist gelaufen; ; whither! speed; person animal
go went gone; gehen ist gegangen; ; whither! how with
drive drove driven; fahren fährt ist gefahren; ; roads! how with
travel; reisen ist gereist; ; towns! with
fly flew flown; fliegen ist geflogen; ; towns! with
come came come; kommen ist gekommen; ; whence!; person animal
jump; springen ist gesprungen; ; onto!; person pet monkey frog
arrive; an·kommen ist angekommen; ; goals chance; person bus train taxi
depart; ab·fahren fährt ist abgefahren; ; chance; bus train ship
get got got (+up); auf·stehen ist aufgestanden; ; hour
fall fell fallen (+asleep); ein·schlafen schläft ist eingeschlafen; ; hour chance; person pet
wake woke woken (+up); auf·wachen ist aufgewacht; ; hour chance; person animal
come came come (+back); zurück·kommen ist zurückgekommen; ; hour
begin began begun; an·fangen fängt angefangen; ; hour chance; entertainment
rest; sich aus·ruhen ausgeruht; ; anywhere
hurry; sich beeilen beeilt
see saw seen; sehen sieht gesehen; person animal vehicle building; state chance; person animal
hear heard; hören gehört; person animal sound; state chance; person animal
buy bought; kaufen gekauft; food drink goods text; shops for
sell sold; verkaufen verkauft; food drink goods pet; shops
find found; finden gefunden; thing garment text pet; anywhere state chance
look (for); suchen gesucht; person thing garment text pet; anywhere
eat ate eaten; essen isst gegessen; food; meals alone
drink drank drunk; trinken getrunken; drink; meals
read read read; lesen liest gelesen; text story; anywhere alone
write wrote written; schreiben geschrieben; book letter poem novel message story song; alone
love; lieben geliebt; person pet; state chance
know knew known; kennen gekannt past=kannte; person building text song story answer; state chance
like; mögen mag gemocht past=mochte; person animal food drink media sound; state chance
need; brauchen gebraucht past=brauchte; goods food text; state chance
have had; haben gehabt past=hatte; pet goods problem question dream; state chance
visit; besuchen besucht; person museum castle church city village island
greet; grüßen gegrüßt; person
meet met; treffen trifft getroffen; person; anywhere
wash; waschen wäscht gewaschen; garment vehicle dog horse; outdoors
clean; putzen geputzt; window mirror kitchen shoe table; how
repair; reparieren repariert; vehicle machine furniture door roof; how
build built; bauen gebaut; house ship bridge table shelf wall; how
paint; malen gemalt; picture flower tree horse bird house
draw drew drawn; zeichnen gezeichnet; picture animal tree castle
carry; tragen trägt getragen; suitcase bag box basket book child; care
take took taken; nehmen nimmt genommen; thing garment text
forget forgot forgotten; vergessen vergisst vergessen; thing garment text word; state chance
lose lost; verlieren verloren; thing garment letter; chance
steal stole stolen; stehlen stiehlt gestohlen; vehicle ring picture suitcase camera; chance; man fox
hold held; halten hält gehalten; thing child; care
order; bestellen bestellt; food drink book taxi
pay paid (for); bezahlen bezahlt; food drink garment book taxi
cook; kochen gekocht; soup egg potato rice meat fish sausage; for
bake; backen gebacken; cake bread pizza; for
feed fed; füttern gefüttert; animal; outdoors
hunt; jagen gejagt; mouse rabbit duck bird goose; outdoors; cat dog fox lion wolf
catch caught; fangen fängt gefangen; mouse rabbit bird ball fish thief; ; person dog cat
ask; fragen gefragt; person
kiss; küssen geküsst; person
understand understood; verstehen verstanden; question text word answer story film; state chance
sing sang sung; singen gesungen; song; anywhere alone loud
play; spielen gespielt; instrument; anywhere alone
open; auf·machen aufgemacht; part box bottle suitcase letter gift umbrella; care
close; zu·machen zugemacht; part box bottle suitcase shop umbrella; care
turn (+on); ein·schalten eingeschaltet; lamp computer radio camera
turn (+off); aus·schalten ausgeschaltet; lamp computer radio phone
call; an·rufen angerufen; person
invite; ein·laden lädt eingeladen; person
pick (+up); ab·holen abgeholt; person letter gift car; goals
throw threw thrown (+away); weg·werfen wirft weggeworfen; letter newspaper bottle photo shoe doll
tidy (+up); auf·räumen aufgeräumt; room cupboard garden; how
try (+on); an·probieren anprobiert; garment
put put put (+on); an·ziehen angezogen; coat shirt dress shoe jacket glove
bring brought (+along); mit·bringen mitgebracht; thing food drink friend guest dog guitar
watch; an·schauen angeschaut; film photo picture; with
help; helfen hilft geholfen dat; person animal
thank; danken gedankt dat; person
answer; antworten geantwortet dat; person
follow; folgen ist gefolgt dat; person animal vehicle; how; person animal
trust; vertrauen vertraut dat; person dog horse; state
listen (to); zu·hören zugehört dat; person
belong (to); gehören gehört dat; person; state chance; goods text pet building
wait (for); warten gewartet auf:acc; person vehicle letter message answer; goals
think thought (of); denken gedacht an:acc; person pet landscape question story
dream (of); träumen geträumt von:dat; person animal house island vehicle beach; chance
talk (about); sprechen spricht gesprochen über:acc; person media building thought music
speak spoke spoken (with); sprechen spricht gesprochen mit:dat; person; loud
laugh (at); lachen gelacht über:acc; person animal mistake film story picture hat; loud
play (with); spielen gespielt mit:dat; ball doll dog cat; anywhere; child boy girl cat dog monkey
remember; sich erinnern erinnert an:acc; person thought film song; state chance
look (+forward to); sich freuen gefreut auf:acc; entertainment answer letter cake; chance
complain (about); sich beschweren beschwert über:acc; person food music hotel machine
take took taken (+part in); teil·nehmen nimmt teilgenommen an:dat; game party
give gave given; geben gibt gegeben; thing food drink text garment; person
show showed shown; zeigen gezeigt; thing text garment building room machine pet film; person
send sent; schicken geschickt; text photo gift flower; person
bring brought; bringen gebracht; thing food drink text garment flower; person
lend lent; leihen geliehen; vehicle instrument machine book umbrella suitcase coat; person
tell told; erzählen erzählt; story secret dream; person
offer; an·bieten angeboten; food drink; person
explain (to); erklären erklärt; question game word picture problem machine; person
recommend (to); empfehlen empfiehlt empfohlen; book film novel restaurant hotel museum wine; person
give gave given (+back to); zurück·geben gibt zurückgegeben; thing text instrument; person
put put put; legen gelegt; text key ring coin knife spoon pencil photo garment; down! care
place; stellen gestellt; bottle glass cup lamp basket chair box suitcase; down! care
"""

# Verbs that take a clause: with that, with whether, or an infinitive with to.
CLAUSE_VERBS = """
know knew known; wissen weiß gewusst past=wusste; ; that whether state
say said; sagen gesagt; ; that
think thought; denken gedacht past=dachte; ; that state
believe; glauben geglaubt past=glaubte; ; that state
hope; hoffen gehofft past=hoffte; ; that to state
hear heard; hören gehört; ; that state
see saw seen; sehen sieht gesehen; ; that state
ask; fragen gefragt; ; whether
try; versuchen versucht; ; to
plan; planen geplant; ; to
decide; beschließen beschlossen; ; to
promise; versprechen verspricht versprochen; ; to
forget forgot forgotten; vergessen vergisst vergessen; ; to
begin began begun; an·fangen fängt angefangen; ; to
"""

WEATHER = """
rain; regnen geregnet
snow; schneien geschneit
"""
