"""Every position variant, on sentences longer than those that it was trained on.

    python -m experiments.sweep --config=configs/sweeps/positions.py --workers=2

Training sentences have at most 20 words; those of the set `long` have 21 to 40. `test`
is scored beside it. All have one rate; `positions_tuned` has each at its own, at two
sizes.
"""

VARIANTS = (
    'sinusoidal',
    'sinusoidal_t2t',
    'learned',
    'rotary',
    'shaw',
    't5',
    'alibi',
    'none',
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
        # Enough steps that all of `test` but the positions' share is learnt.
        overrides={
            'evaluation.sets': 'test,long',
            'train.steps': 1_000,
            'checkpoint.every': 1_000,
            'evaluation.every': 250,
        },
        arms={name: {'model.positions': name} for name in VARIANTS},
        seeds=(0, 1, 2),
        base='sinusoidal',
        measure='long bleu',
        differs='A model of width 64 on sentences of a grammar, for 1,000 steps.',
    )
