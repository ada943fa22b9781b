"""Batches and models for inflection, at the published sizes.

Needs the data: `git clone https://github.com/sigmorphon/conll2017`. `inflection_small`
is for two cores.
"""

from configs.sweeps import inflection_small

# About 20 and 400 forms of ten letters.
BATCHES = {'small batches': 256, 'large batches': 4_096}
MODELS = {
    'LSTM': {
        'model.architecture': 'recurrent(cell="lstm")',
        'model.d_model': 400,
        'model.num_layers': 2,
        'model.decoder.num_layers': 1,
        'model.dropout': 0.4,
    },
    'Transformer': {
        'model.d_model': 256,
        'model.num_layers': 4,
        'model.d_ff': 1_024,
        'model.dropout': 0.3,
        'optimizer.b2': 0.98,
    },
}


def get_config() -> dict:
    sweep = inflection_small.get_config()
    languages = ('german', 'turkish', 'english')
    batches = {name: {'batch.tokens': n} for name, n in BATCHES.items()}
    return sweep | dict(
        overrides={
            'optimizer.clip': 1.0,
            'optimizer.schedule': 'cosine(peak=1e-3, warmup=0.2)',
            'train.steps': 20_000,
            'evaluation.every': 2_000,
        },
        factors={
            'language': {
                name: {'data': f'sigmorphon(path="conll2017", language="{name}")'}
                for name in languages
            },
            'model': MODELS,
            'batches': batches,
        },
        base='german, LSTM, small batches',
        contrasts=[
            (f'{language}, {one}', f'{language}, {other}')
            for language in languages
            for one, other in inflection_small.PAIRS
        ],
        differs=(
            'Features are words before the letters, with their own positions. Both '
            "models use a cosine schedule. The LSTM's embeddings are as wide as its "
            'states, not half as wide.'
        ),
    )
