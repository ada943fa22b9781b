"""The arms of `modern` on commands and on inflection.

Needs the data: `git clone https://github.com/sigmorphon/conll2017`.
"""

from configs.sweeps import claims_tasks, modern

RATES = [1.5e-3, 6e-3]


def get_config() -> dict:
    tasks = claims_tasks.TASKS
    return modern.get_config() | dict(
        config='configs/scan.py',
        overrides=claims_tasks.SMALL
        | {'model.d_model': modern.WIDTH, 'model.d_ff': 4 * modern.WIDTH},
        arms={},
        factors={'task': tasks, 'part': modern.PARTS},
        tune=dict(
            field='optimizer.schedule.peak', values=RATES, seeds=modern.TRIAL_SEEDS
        ),
        base='SCAN, base',
        contrasts=[
            (f'{task}, {part}', f'{task}, base')
            for task in tasks
            for part in modern.PARTS
            if part != 'base'
        ],
        measure='test exact_match',
        differs=(
            f'Two layers of width {modern.WIDTH}, on commands of SCAN and on German '
            'inflection, for 1,500 steps; most papers train language models.'
        ),
    )
