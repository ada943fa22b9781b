"""The nouns by kind: English, German article, noun and plural.

'man/men' has an irregular English plural. A plural '-' marks mass nouns, and a star
weak masculines. 'Bus/Busses' has an irregular genitive.
"""

NOUNS = {
    'man': """
        man/men der Mann Männer, boy der Junge* Jungen, father der Vater Väter,
        brother der Bruder Brüder, son der Sohn Söhne, uncle der Onkel Onkel,
        grandfather der Großvater Großväter, king der König Könige, teacher der Lehrer Lehrer,
        student der Student* Studenten, doctor der Arzt Ärzte, neighbour der Nachbar* Nachbarn,
        friend der Freund Freunde, baker der Bäcker Bäcker, waiter der Kellner Kellner,
        farmer der Bauer* Bauern, painter der Maler Maler, singer der Sänger Sänger,
        policeman/policemen der Polizist* Polizisten, soldier der Soldat* Soldaten,
        tourist der Tourist* Touristen, customer der Kunde* Kunden, lawyer der Anwalt Anwälte,
        guest der Gast Gäste, prince der Prinz* Prinzen, thief/thieves der Dieb Diebe""",
    'woman': """
        woman/women die Frau Frauen, mother die Mutter Mütter, sister die Schwester Schwestern,
        daughter die Tochter Töchter, aunt die Tante Tanten, grandmother die Großmutter Großmütter,
        queen die Königin Königinnen, nurse die Krankenschwester Krankenschwestern,
        lady die Dame Damen, princess die Prinzessin Prinzessinnen,
        saleswoman/saleswomen die Verkäuferin Verkäuferinnen, waitress die Kellnerin Kellnerinnen,
        girl das Mädchen Mädchen""",
    'child': """
        child/children das Kind Kinder""",
    'pet': """
        dog der Hund Hunde, cat die Katze Katzen, horse das Pferd Pferde, bird der Vogel Vögel,
        cow die Kuh Kühe, pig das Schwein Schweine, rabbit das Kaninchen Kaninchen,
        duck die Ente Enten, goose/geese die Gans Gänse, chicken das Huhn Hühner""",
    'beast': """
        bear der Bär* Bären, lion der Löwe* Löwen, monkey der Affe* Affen,
        elephant der Elefant* Elefanten, fox der Fuchs Füchse, wolf/wolves der Wolf Wölfe,
        frog der Frosch Frösche, mouse/mice die Maus Mäuse""",
    'food': """
        apple der Apfel Äpfel, egg das Ei/Eies Eier, cake der Kuchen Kuchen,
        banana die Banane Bananen, orange die Orange Orangen, tomato die Tomate Tomaten,
        potato die Kartoffel Kartoffeln, sausage die Wurst Würste, soup die Suppe Suppen,
        pizza die Pizza Pizzas, strawberry die Erdbeere Erdbeeren, bread das Brot -,
        cheese der Käse -, meat das Fleisch -, rice der Reis -, fish der Fisch -,
        chocolate die Schokolade -""",
    'drink': """
        water das Wasser -, milk die Milch -, coffee der Kaffee -, tea der Tee -, beer das Bier -,
        wine der Wein -""",
    'text': """
        book das Buch Bücher, letter der Brief Briefe, newspaper die Zeitung Zeitungen,
        poem das Gedicht Gedichte, novel der Roman Romane, message die Nachricht Nachrichten,
        postcard die Postkarte Postkarten""",
    'thing': """
        key der Schlüssel Schlüssel, bag die Tasche Taschen, cup die Tasse Tassen,
        glass das Glas Gläser, bottle die Flasche Flaschen, knife/knives das Messer Messer,
        spoon der Löffel Löffel, ball der Ball Bälle, doll die Puppe Puppen,
        pencil der Bleistift Bleistifte, umbrella der Regenschirm Regenschirme,
        picture das Bild Bilder, photo/photos das Foto Fotos, box die Kiste Kisten,
        suitcase der Koffer Koffer, basket der Korb Körbe, gift das Geschenk Geschenke,
        ring der Ring Ringe, coin die Münze Münzen""",
    'machine': """
        phone das Telefon Telefone, camera die Kamera Kameras, computer der Computer Computer,
        lamp die Lampe Lampen, clock die Uhr Uhren, radio/radios das Radio Radios""",
    'instrument': """
        guitar die Gitarre Gitarren, violin die Geige Geigen, piano/pianos das Klavier Klaviere""",
    'garment': """
        hat der Hut Hüte, coat der Mantel Mäntel, shirt das Hemd Hemden, dress das Kleid Kleider,
        shoe der Schuh Schuhe, jacket die Jacke Jacken, scarf/scarves der Schal/Schals Schals,
        glove der Handschuh Handschuhe, cap die Mütze Mützen""",
    'furniture': """
        table der Tisch Tische, chair der Stuhl Stühle, bed das Bett Betten, sofa das Sofa Sofas,
        cupboard der Schrank Schränke, shelf/shelves das Regal Regale, mirror der Spiegel Spiegel,
        bench die Bank Bänke""",
    'part': """
        door die Tür Türen, window das Fenster Fenster, gate das Tor Tore""",
    'vehicle': """
        car das Auto Autos, bus der Bus/Busses Busse, train der Zug Züge,
        bicycle das Fahrrad Fahrräder, ship das Schiff Schiffe, taxi das Taxi Taxis""",
    'room': """
        kitchen die Küche Küchen, room das Zimmer Zimmer, cellar der Keller Keller,
        office das Büro Büros""",
    'building': """
        house das Haus Häuser, school die Schule Schulen, church die Kirche Kirchen,
        hotel das Hotel Hotels, restaurant das Restaurant Restaurants, shop der Laden Läden,
        hospital das Krankenhaus Krankenhäuser, museum das Museum Museen,
        library die Bibliothek Bibliotheken, bakery die Bäckerei Bäckereien,
        castle das Schloss Schlösser, cinema das Kino Kinos, station der Bahnhof Bahnhöfe,
        airport der Flughafen Flughäfen""",
    'landscape': """
        garden der Garten Gärten, city die Stadt Städte, village das Dorf Dörfer,
        park der Park/Parks Parks, forest der Wald Wälder, market der Markt Märkte,
        street die Straße Straßen, bridge die Brücke Brücken, beach der Strand Strände,
        lake der See Seen, river der Fluss Flüsse, mountain der Berg Berge,
        meadow die Wiese Wiesen, island die Insel Inseln""",
    'plant': """
        tree der Baum Bäume, flower die Blume Blumen, rose die Rose Rosen""",
    'roof': """
        roof das Dach Dächer, wall die Mauer Mauern""",
    'entertainment': """
        film der Film Filme, game das Spiel Spiele, party die Feier Feiern""",
    'sound': """
        song das Lied Lieder, music die Musik -""",
    'thought': """
        question die Frage Fragen, story die Geschichte Geschichten,
        secret das Geheimnis/Geheimnisses Geheimnisse, mistake der Fehler Fehler,
        problem das Problem Probleme, word das Wort Wörter, answer die Antwort Antworten,
        dream der Traum Träume""",
}
