"""What explanations of the Transformer say of it, each as a measurement.

    python -m experiments.sweep --config=configs/sweeps/claims.py --workers=2

- Scores that are not divided by √d_k push the softmax to where its gradient vanishes,
  the more the larger d_k is (§3.2.1): the arms `d_k=…`, with and without the division.
  The gradient norms are in the runs' metrics.
- Learned and fixed positions are equal (§3.5; Table 3, row E).
- A decoder knows the order of its tokens without positions, an encoder does not.
- Tied embeddings cost nothing (§3.4).

That one head blurs where several words matter at once is `needles.py`. All arms have
one rate; `claims_tuned` has them at their own, at two sizes, and `claims_tasks` on
other tasks.
"""

ARMS = {
    'base': {},
    'd_k=16, unscaled': {'model.attention': 'softmax(scale=False)'},
    'd_k=128': {'model.d_k': 128},
    'd_k=128, unscaled': {
        'model.d_k': 128,
        'model.attention': 'softmax(scale=False)',
    },
    'learned positions': {'model.positions': 'learned'},
    'no positions in the encoder': {
        'model.positions': 'none',
        'model.decoder_positions': 'sinusoidal',
    },
    'no positions in the decoder': {'model.decoder_positions': 'none'},
    'no positions': {'model.positions': 'none'},
    'tied in the decoder alone': {'model.tie': 'decoder'},
    'not tied': {'model.tie': 'none'},
}


def get_config() -> dict:
    return dict(
        question='Does what explanations of the Transformer say of it hold?',
        source='Vaswani et al. 2017, §3.2.1, §3.4 and §3.5',
        config='configs/wmt_tiny.py',
        arms=ARMS,
        seeds=(0, 1, 2),
        base='base',
        measure='test bleu',
        differs='A model of width 64 on sentences of a grammar, for 600 steps.',
    )
