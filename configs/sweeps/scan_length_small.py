"""The arms of `scan_length`, in 2,000 steps of half as many pairs, on two CPU cores.

python -m experiments.sweep --config=configs/sweeps/scan_length_small.py --workers=2
"""

from configs.sweeps import scan_length

SHORTER = {
    'batch.tokens': 2_048,
    'model.dropout': 0.3,
    'model.dtype': 'bfloat16',
    'optimizer.schedule': 'cosine(peak=1e-3, warmup=0.1)',
    'train.steps': 2_000,
    'checkpoint.every': 500,
    'evaluation.every': 1_000,
}


def get_config() -> dict:
    sweep = scan_length.get_config()
    sweep['overrides'] |= SHORTER
    return sweep | dict(
        seeds=(0, 1, 2),
        differs=(
            'Their size of model, for 2,000 steps of about 140 pairs, not 50,000 of '
            '256: so a rate that falls as a cosine, not a constant one, and dropout '
            '0.3, not 0.5. Queries have no bias.'
        ),
    )
