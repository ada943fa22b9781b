"""Post-norm, pre-norm, ReZero and DeepNorm, shallow and deep, with and without warm-up.

    python -m experiments.sweep --config=configs/sweeps/norm_placement.py --workers=2

With two workers on two cores it takes about 45 minutes.
"""

RESIDUALS = ('post_norm', 'pre_norm', 'rezero', 'deepnorm')
DEPTHS = (2, 6)
WARMUPS = {'warm-up': 0.15, 'none': 0.0}


def arms() -> dict[str, dict]:
    found = {}
    for residual in RESIDUALS:
        for depth in DEPTHS:
            for name, share in WARMUPS.items():
                overrides = {'model.residual': residual, 'model.num_layers': depth}
                schedule = f'cosine(peak=6e-3, warmup={share})'
                overrides['optimizer.schedule'] = schedule
                found[f'{residual}, {depth} layers, {name}'] = overrides
    return found


def get_config() -> dict:
    return dict(
        question='Does post-norm need warm-up, and does depth change that?',
        source=(
            'Xiong et al. 2020, "On Layer Normalization in the Transformer '
            'Architecture": at initialisation the expected gradient of the last '
            'feed-forward layer is of order d √(ln d) in post-norm and '
            'd √(ln d / L) in pre-norm, which trains without warm-up; Bachlechner et '
            'al. 2020 (ReZero); Wang et al. 2022 (DeepNet)'
        ),
        config='configs/wmt_tiny.py',
        arms=arms(),
        seeds=(0, 1, 2),
        base='post_norm, 2 layers, warm-up',
        measure='test bleu',
        differs=(
            'A model of width 64 on sentences of a grammar, for 600 steps; the papers '
            'train on IWSLT14 and WMT.'
        ),
    )
