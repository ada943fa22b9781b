"""One learning rate for every width: Xavier's first values compared with μP's.

At the base width both are the same model.
"""

BASE = 32
WIDTHS = (32, 64, 128)
RATES = ('3e-3', '1e-2', '3e-2', '1e-1')
INITS = {'xavier': 'xavier', 'μP': f'mu_p(base={BASE})'}


def arms() -> dict[str, dict]:
    found = {}
    for width in WIDTHS:
        for name, init in INITS.items():
            if width == BASE and name == 'μP':
                continue
            for rate in RATES:
                found[f'{name}, d_model={width}, rate {rate}'] = {
                    'model.d_model': width,
                    'model.d_ff': 4 * width,
                    'model.init': init,
                    'optimizer.schedule': f'cosine(peak={rate}, warmup=0.15)',
                }
    return found


def get_config() -> dict:
    return dict(
        question='Does the best learning rate stay the same as the model gets wider?',
        source=(
            'Yang et al. 2021, "Tensor Programs V: Tuning Large Neural Networks via '
            'Zero-Shot Hyperparameter Transfer"'
        ),
        config='configs/wmt_tiny.py',
        overrides={
            'model.dtype': 'bfloat16',
            'evaluation.every': 600,
            'evaluation.decode': 'greedy',
        },
        arms=arms(),
        seeds=(0, 1, 2),
        base=f'xavier, d_model={BASE}, rate 1e-2',
        measure='test loss',
        differs='Widths from 32 to 128 on sentences of a grammar, for 600 steps.',
    )
