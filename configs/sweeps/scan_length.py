"""Positions on SCAN: more actions than in training, as in Csordás et al.

Training has at most 26 actions, `test` 27 to 48. Size and training follow the
repository of `cogs` (profile `trafo_scan`; `sweeps/scan_trafo_length_cutoff.yaml`).
4,096 target positions are about 256 pairs there. `scan_length_small` is for two cores.
"""

ARMS = {
    'absolute': {},
    'relative, Transformer-XL': {'model.positions': 'transformer_xl'},
    'relative, Shaw': {'model.positions': 'shaw'},
}


def get_config() -> dict:
    return dict(
        question='Which positions can write more SCAN actions than in training?',
        source=(
            'Csordás, Irie and Schmidhuber 2021, "The Devil is in the Detail" '
            '(arXiv 2108.12284): "relative positional embedding largely mitigates the '
            'EOS decision problem (Newman et al., 2020), yielding 100% accuracy on the '
            'length split with a cutoff at 26"'
        ),
        config='configs/scan.py',
        overrides={
            'data': 'scan(split="length", cutoff=26)',
            'batch.tokens': 4_096,
            'model.residual': 'post_norm',
            'model.tie': 'none',
            'model.dropout': 0.5,
            'optimizer.b2': 0.999,
            'optimizer.eps': 1e-8,
            'optimizer.clip': 5.0,
            'optimizer.schedule': 'constant_schedule(value=1e-3)',
            'train.steps': 50_000,
            'evaluation.every': 2_500,
            'evaluation.sets': 'test',
        },
        arms=ARMS,
        seeds=(0, 1, 2, 3, 4),
        base='absolute',
        measure='test exact_match',
        published={'relative, Transformer-XL': {'exact_match': 100.0}},
        differs='Queries have no bias, and batches are of tokens, not of pairs.',
    )
