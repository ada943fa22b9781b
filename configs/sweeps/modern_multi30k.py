"""Arms of `modern_wide` on Multi30k, each at its best rate on the grammar.

The base is trained in float32 as well. Needs the folder `multi30k/` of
results/README.md, with `test_2016_flickr`.
"""

from configs.sweeps import modern, modern_wide

PARTS = modern.parts(modern_wide.WIDTH)
RATES = {
    'base': 4e-3,
    'rotary': 4e-3,
    'SwiGLU': 8e-3,
    'QK norm': 8e-3,
    modern.COMBINATION: 1.6e-2,
    'nGPT': 8e-3,
    'sink': 4e-3,
    'gated, per element': 4e-3,
}


def get_config() -> dict:
    wide = modern_wide.get_config()
    arms = {
        part: PARTS[part] | {'optimizer.schedule.peak': rate}
        for part, rate in RATES.items()
    }
    arms['float32'] = arms['base'] | {'model.dtype': 'float32'}
    return wide | dict(
        question='Do components that help on a grammar help on Multi30k?',
        overrides=wide['overrides']
        | {
            'data': 'text(path="multi30k", source="en", target="de")',
            'tokenizer': 'sentencepiece(vocab_size=4000)',
            'batch.tokens': 2_048,
            'train.steps': 1_200,
            'checkpoint.every': 1_200,
            'evaluation.every': 1_200,
            'evaluation.sets': 'test_2016_flickr',
        },
        arms=arms,
        tune=None,
        contrasts=[(arm, 'base') for arm in arms if arm != 'base'],
        margin=0.5,
        measure='test_2016_flickr bleu',
        differs=(
            f'Two layers of width {modern_wide.WIDTH} on 29,000 captions, for 1,200 '
            'steps; most papers train language models of over 100 million parameters.'
        ),
    )
