"""Adam, Muon, SOAP and schedule-free AdamW, each at its own best rate.

Schedule-free AdamW has a constant rate, the others a cosine schedule. All warm up for
90 of the 600 steps.
"""

from configs.sweeps import modern

RATES = [4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2]
STEPS, WARMUP = 600, 90
PEAK = 'init_value=0.0, peak_value=1e-2, warmup_steps='
COSINE = f'warmup_cosine_decay_schedule({PEAK}{WARMUP}, decay_steps={STEPS})'
CONSTANT = f'warmup_constant_schedule({PEAK}{WARMUP})'
ARMS = {
    'Adam': {'optimizer.schedule': COSINE},
    'Muon': {
        'optimizer.schedule': COSINE,
        # The rest is trained by Adam, with the constants of the first arm.
        'optimizer.name': 'contrib.muon(adam_b2=0.98, eps=1e-9)',
    },
    'SOAP': {'optimizer.schedule': COSINE, 'optimizer.name': 'soap'},
    'schedule-free AdamW': {
        'optimizer.schedule': CONSTANT,
        'optimizer.name': 'contrib.schedule_free_adamw(b2=0.98, eps=1e-9)',
    },
}


def get_config() -> dict:
    components = modern.get_config()
    return components | dict(
        question='Which optimizer trains a small encoder-decoder best in 600 steps?',
        source=(
            'Jordan et al. 2024 (Muon); Vyas et al. 2024 (SOAP); Defazio et al. 2024, '
            '"The Road Less Scheduled" (schedule-free); Kingma and Ba 2015 (Adam)'
        ),
        arms=ARMS,
        tune=dict(field='optimizer.schedule.peak_value', values=RATES),
        seeds=tuple(range(8)),
        base='Adam',
        contrasts=[(arm, 'Adam') for arm in ARMS if arm != 'Adam'],
        differs=(
            f'Two layers of width {modern.WIDTH} on sentences of a grammar, for '
            f'{STEPS} steps; the papers train language models and image classifiers.'
        ),
    )
