"""Post- and pre-norm with and without warm-up, on two tasks other than translation.

Each arm has its own best rate. Needs the data: `git clone
https://github.com/sigmorphon/conll2017`.
"""

from configs.sweeps import claims_tasks, norm_tuned

NORMS = ('post_norm', 'pre_norm')


def get_config() -> dict:
    tasks = claims_tasks.TASKS
    of_warmup = [
        (f'{task}, {norm}, none', f'{task}, {norm}, warm-up')
        for task in tasks
        for norm in NORMS
    ]
    of_norm = [
        (f'{task}, post_norm, warm-up', f'{task}, pre_norm, warm-up') for task in tasks
    ]
    return norm_tuned.get_config() | dict(
        config='configs/scan.py',
        overrides=claims_tasks.SMALL | {'model.num_layers': 4},
        factors={
            'task': tasks,
            'norm': {norm: {'model.residual': norm} for norm in NORMS},
            'warm-up': norm_tuned.WARMUP_LEVELS,
        },
        tune=dict(
            field='optimizer.schedule.peak', values=[5e-4, 1e-3, 2e-3, 4e-3, 8e-3]
        ),
        base=f'{next(iter(tasks))}, post_norm, warm-up',
        contrasts=of_warmup + of_norm,
        measure='test exact_match',
        differs=(
            'Four layers of width 64, on commands of SCAN and on German inflection, '
            'for 1,500 steps; the paper trains on IWSLT14 and WMT14.'
        ),
    )
