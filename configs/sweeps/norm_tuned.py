"""Post- and pre-norm, depth and warm-up, each arm at its own best rate.

Takes about half an hour with two workers on two cores.
"""

RATES = [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2]
WARMUP_LEVELS = {
    name: {'optimizer.schedule': f'cosine(peak=2e-3, warmup={share})'}
    for name, share in {'warm-up': 0.15, 'none': 0.0}.items()
}


def get_config() -> dict:
    norms = ('post_norm', 'pre_norm')
    depths = ('2 layers', '6 layers')
    of_warmup = [
        (f'{norm}, {depth}, none', f'{norm}, {depth}, warm-up')
        for norm in norms
        for depth in depths
    ]
    of_norm = [
        (f'post_norm, {depth}, warm-up', f'pre_norm, {depth}, warm-up')
        for depth in depths
    ]
    return dict(
        question='Does post-norm need warm-up if each arm has its own best rate?',
        source=(
            'Xiong et al. 2020, "On Layer Normalization in the Transformer '
            'Architecture" (arXiv 2002.04745): post-norm has large gradients near the '
            'output at initialization, so that a large rate makes training unstable '
            'and warm-up is needed; pre-norm trains without it'
        ),
        config='configs/wmt_tiny.py',
        overrides={
            'model.dtype': 'bfloat16',
            'evaluation.every': 600,
            'evaluation.decode': 'greedy',
        },
        factors={
            'norm': {norm: {'model.residual': norm} for norm in norms},
            'depth': {name: {'model.num_layers': int(name[0])} for name in depths},
            'warm-up': WARMUP_LEVELS,
        },
        tune=dict(field='optimizer.schedule.peak', values=RATES),
        seeds=(0, 1, 2),
        base='post_norm, 2 layers, warm-up',
        contrasts=of_warmup + of_norm,
        margin=2.0,
        measure='test bleu',
        differs=(
            'A model of width 64 on sentences of a grammar, for 600 steps; the paper '
            'trains on IWSLT14 and WMT14.'
        ),
    )
