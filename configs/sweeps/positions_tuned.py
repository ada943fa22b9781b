"""Every position variant, on longer sentences, at two sizes and tuned rates.

Training sentences have at most 20 words, those of the set `long` 21 to 40.
"""

from configs.sweeps.claims_tuned import SIZES

VARIANTS = (
    'sinusoidal',
    'sinusoidal_t2t',
    'learned',
    'rotary',
    'shaw',
    't5',
    'alibi',
    'none',
    'transformer_xl',
)


def get_config() -> dict:
    return dict(
        question='Which positions translate sentences longer than any in training?',
        source=(
            'Vaswani et al. 2017, §3.5: sinusoids "may allow the model to extrapolate '
            'to sequence lengths longer than the ones encountered during training"; '
            'Press et al. 2022 (ALiBi); Su et al. 2021 (RoPE); Shaw et al. 2018; '
            'Raffel et al. 2020 (T5)'
        ),
        config='configs/wmt_tiny.py',
        # With fewer steps, `test` is not learned with any positions.
        overrides={
            'evaluation.sets': 'test,long',
            'train.steps': 1_000,
            'checkpoint.every': 1_000,
            'model.dtype': 'bfloat16',
            'optimizer.schedule': 'cosine(peak=1.2e-2, warmup=0.15)',
            'evaluation.every': 1_000,
            'evaluation.decode': 'greedy',
        },
        factors={
            'size': SIZES,
            'positions': {name: {'model.positions': name} for name in VARIANTS},
        },
        tune=dict(field='optimizer.schedule.peak', values=[3e-3, 6e-3, 1.2e-2, 2.4e-2]),
        seeds=(0, 1, 2),
        base='width 64, sinusoidal',
        contrasts=[
            (f'{size}, {name}', f'{size}, sinusoidal')
            for size in SIZES
            for name in VARIANTS
            if name != 'sinusoidal'
        ],
        measure='long bleu',
        differs='Models of width 64 and 128 on sentences of a grammar; 1,000 steps.',
    )
