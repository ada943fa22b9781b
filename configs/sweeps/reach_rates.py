"""The learning rates of `reach`, tuned at its smallest size.

Each arm and rate is an arm here, at width 32 for 600 steps. μP transfers the rate to
the other widths.
"""

from configs.sweeps import published_forms

WIDTH = 32
ARMS = ('base', 'gated', 'multi-token', 'QK norm', published_forms.COMBINATION)
RATES = (8e-3, 1.6e-2, 3.2e-2, 6.4e-2)


def get_config() -> dict:
    of_forms = published_forms.get_config()
    parts = published_forms.parts(WIDTH)
    arms = {
        f'{part}, rate {rate}': parts[part]
        | {'optimizer.schedule': f'cosine(peak={rate}, warmup=0.15)'}
        for part in ARMS
        for rate in RATES
    }
    return dict(
        question='Which learning rate suits each component at width 32?',
        source='Yang et al. 2021, "Tensor Programs V" (transfer of rates)',
        config=of_forms['config'],
        overrides=of_forms['overrides']
        | {
            'model.d_model': WIDTH,
            'model.d_ff': 4 * WIDTH,
            'evaluation.sets': 'val',
        },
        arms=arms,
        seeds=(100, 101),
        base=f'base, rate {RATES[1]}',
        measure='val loss',
        differs='Width 32, for 600 steps.',
    )
