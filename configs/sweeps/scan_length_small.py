"""The arms of `scan_length`, in 2,000 steps of half as many pairs, on two CPU cores.

python -m experiments.sweep --config=configs/sweeps/scan_length_small.py --workers=2
"""

from configs.sweeps import scan_length

SHORTER = {
    'model.dtype': 'bfloat16',
    'train.steps': 2_000,
    'checkpoint.every': 500,
    'evaluation.every': 1_000,
    'evaluation.sets': 'test',
}


def get_config() -> dict:
    sweep = scan_length.get_config()
    sweep['overrides'] = SHORTER | {'data': sweep['overrides']['data']}
    return sweep | dict(
        seeds=(0, 1, 2),
        differs=(
            'Their size of model, for 2,000 steps of about 140 pairs, not 50,000 of '
            '256: so pre-norm, not post-norm, a rate that falls as a cosine, not a '
            'constant one, dropout 0.1, not 0.5, and one matrix of embeddings, not '
            'three. Queries have no bias.'
        ),
    )
