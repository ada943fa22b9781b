"""Arms of `modern` on longer commands than any in training, and on inflection.

SCAN has no third set: its rates are chosen on 500 commands of `test`, with another
seed. Needs the data: `git clone https://github.com/sigmorphon/conll2017`.
"""

from configs.sweeps import claims_tasks, modern, modern_wide

TASKS = {
    'SCAN length': {
        'data': 'scan(split="length", cutoff=26)',
        'tokenizer': 'words(vocab_size=100)',
    },
    'inflection': claims_tasks.TASKS['inflection'],
}
# Hyper-connections take twice the time.
PARTS = [part for part in modern_wide.PARTS if part != 'hyper-connections']


def get_config() -> dict:
    return modern.get_config() | dict(
        question='Which components help on longer commands and on inflection?',
        config='configs/scan.py',
        overrides=claims_tasks.SMALL,
        arms={},
        factors={'task': TASKS, 'part': {part: modern.PARTS[part] for part in PARTS}},
        tune=dict(field='optimizer.schedule.peak', values=[6e-3, 1.2e-2]),
        base='SCAN length, base',
        contrasts=[
            (f'{task}, {part}', f'{task}, base')
            for task in TASKS
            for part in PARTS
            if part != 'base'
        ],
        measure='test exact_match',
        differs=(
            f'Two layers of width {modern.WIDTH}, on commands of SCAN and on German '
            'inflection, for 1,500 steps; most papers train language models.'
        ),
    )
