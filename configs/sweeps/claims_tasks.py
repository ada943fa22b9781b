"""The arms of `claims_tuned` on commands and on inflection.

Needs the data: `git clone https://github.com/sigmorphon/conll2017`.
"""

from configs.sweeps import claims_tuned

TASKS = {
    'SCAN': {'data': 'scan(split="simple")', 'tokenizer': 'words(vocab_size=100)'},
    'inflection': {
        'data': 'sigmorphon(path="conll2017", language="german")',
        'tokenizer': 'words(vocab_size=200)',
    },
}
# A model of a few seconds, on tasks whose outputs are right or wrong as a whole.
SMALL = {
    'batch.tokens': 1_024,
    'model.d_model': 64,
    'model.num_layers': 2,
    'model.d_ff': 256,
    'model.dtype': 'bfloat16',
    'optimizer.schedule': 'cosine(peak=3e-3, warmup=0.15)',
    'train.steps': 1_500,
    'checkpoint.every': 1_500,
    'checkpoint.keep': 1,
    'evaluation.every': 1_500,
    'evaluation.sets': 'test',
    'evaluation.metrics': 'exact_match',
    'evaluation.decode': 'greedy',
}


def get_config() -> dict:
    return claims_tuned.get_config() | dict(
        config='configs/scan.py',
        overrides=SMALL,
        factors={'task': TASKS, 'part': claims_tuned.PARTS},
        tune=dict(field='optimizer.schedule.peak', values=[1.5e-3, 3e-3, 6e-3, 1.2e-2]),
        base='SCAN, base',
        contrasts=claims_tuned.contrasts(TASKS),
        measure='test exact_match',
        differs=(
            'Two layers of width 64, on commands of SCAN and on German inflection, for '
            '1,500 steps; of translation the papers speak.'
        ),
    )
