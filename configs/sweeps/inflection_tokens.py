"""Batches and models for inflection, as many letters each, on three languages.

Needs the data: `git clone https://github.com/sigmorphon/conll2017`.
"""

from configs.sweeps import inflection_small

LANGUAGES = ('german', 'turkish', 'english')


def get_config() -> dict:
    sweep = inflection_small.get_config()
    languages = {
        name: {'data': f'sigmorphon(path="conll2017", language="{name}")'}
        for name in LANGUAGES
    }
    return sweep | dict(
        overrides=sweep['overrides']
        | {'train.steps': 1_500, 'evaluation.sets': 'test'},
        equal='tokens',
        factors={'language': languages} | sweep['factors'],
        base='german, Transformer, large batches',
        contrasts=[
            (f'{language}, {one}', f'{language}, {other}')
            for language in LANGUAGES
            for one, other in inflection_small.PAIRS
        ],
        margin=1.5,
        differs=(
            'A Transformer of 3 and 3 layers of width 128 and an LSTM of one and one '
            'of that width, each for some three million letters; theirs have 4 and 4 '
            'of width 256 and 2 and 1 of width 400, for 20,000 steps.'
        ),
    )
