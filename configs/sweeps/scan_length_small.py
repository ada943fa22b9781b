"""The arms of `scan_length`, in 2,000 steps of half as many pairs, on two CPU cores."""

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
            'The same model size, for 2,000 steps of about 140 pairs instead of 50,000 '
            'of 256. It uses pre-norm instead of post-norm, a cosine schedule instead '
            'of a constant rate, dropout 0.1 instead of 0.5, and one embedding matrix '
            'instead of three. Queries have no bias.'
        ),
    )
