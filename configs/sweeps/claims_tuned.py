"""Common explanations of the Transformer, tested at two sizes and tuned rates.

- Without division by √d_k, the gradient of the softmax vanishes for large d_k (§3.2.1).
- Learned and fixed positions are equal (§3.5; Table 3, row E).
- A decoder knows the order of its tokens without positions, an encoder does not.
- Tied embeddings cost nothing (§3.4).
"""

PARTS = {
    'base': {},
    'not divided': {'model.attention': 'softmax(scale=False)'},
    'd_k=128': {'model.d_k': 128},
    'd_k=128, not divided': {
        'model.d_k': 128,
        'model.attention': 'softmax(scale=False)',
    },
    'learned positions': {'model.positions': 'learned'},
    'no positions in the encoder': {
        'model.positions': 'none',
        'model.decoder.positions': 'sinusoidal',
    },
    'no positions in the decoder': {'model.decoder.positions': 'none'},
    'not tied': {'model.tie': 'none'},
}
# All other parts are compared with `base`.
OTHER_BASE = {'d_k=128, not divided': 'd_k=128'}
SIZES = {'width 64': {}, 'width 128': {'model.d_model': 128, 'model.d_ff': 512}}


def contrasts(groups) -> list[tuple[str, str]]:
    """Returns each part with its base, within each size or task."""
    return [
        (f'{group}, {part}', f'{group}, {OTHER_BASE.get(part, "base")}')
        for group in groups
        for part in PARTS
        if part not in ('base', 'd_k=128')
    ]


def get_config() -> dict:
    return dict(
        question='Do common explanations of the Transformer hold?',
        source='Vaswani et al. 2017, §3.2.1, §3.4 and §3.5',
        config='configs/wmt_tiny.py',
        overrides={
            'model.dtype': 'bfloat16',
            'optimizer.schedule': 'cosine(peak=1.2e-2, warmup=0.15)',
            'evaluation.every': 600,
            'evaluation.decode': 'greedy',
        },
        factors={'size': SIZES, 'part': PARTS},
        tune=dict(
            field='optimizer.schedule.peak', values=[1.5e-3, 3e-3, 6e-3, 1.2e-2, 2.4e-2]
        ),
        seeds=(0, 1, 2),
        base='width 64, base',
        contrasts=contrasts(SIZES),
        margin=2.0,
        measure='test bleu',
        differs='Two layers of width 64 or 128, on sentences of a grammar; 600 steps.',
    )
