"""The arms of `cogs`, a quarter as wide and in fewer steps of less, on two CPU cores.

python -m experiments.sweep --config=configs/sweeps/cogs_small.py --workers=2
"""

from configs.sweeps import cogs

OF_THE_DATA = (
    *('data', 'tokenizer', 'batch.max_length'),
    *('evaluation.every', 'evaluation.extra_length', 'evaluation.sets'),
)


def get_config() -> dict:
    sweep = cogs.get_config()
    kept = {name: sweep['overrides'][name] for name in OF_THE_DATA}
    sweep['overrides'] = kept | {
        'batch.tokens': 4_096,
        'model.num_heads': 4,
        'model.num_layers': 2,
        'model.dtype': 'bfloat16',
        'train.steps': 2_500,
    }
    return sweep | dict(
        seeds=(0, 1, 2),
        differs=(
            'Two and two layers of width 128, not 512, for 2,500 steps of about 90 '
            'pairs, not 50,000 of 128: so pre-norm, not post-norm, and a rate that '
            'falls as a cosine from 1e-3, not a constant one of 1e-4.'
        ),
    )
