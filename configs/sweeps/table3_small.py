"""The rows of the paper's Table 3, an eighth as wide and half as deep, on two cores.

The number of heads is the paper's. Residuals are pre-norm: post-norm needs more steps.
Each row has its own best rate.
"""

from configs.sweeps import table3

SIZES = {
    'model.num_layers': 3,
    'model.num_heads': 8,
    'model.dtype': 'bfloat16',
    'optimizer.schedule': 'cosine(peak=1.2e-2, warmup=0.15)',
    'evaluation.every': 600,
    'evaluation.decode': 'greedy',
}
# The paper's row → ours.
ARMS = {
    'base': {},
    'A h=1': {'model.num_heads': 1},
    'A h=4': {'model.num_heads': 4},
    'A h=16': {'model.num_heads': 16},
    'A h=32': {'model.num_heads': 32},
    'B d_k=2': {'model.d_k': 2},
    'B d_k=4': {'model.d_k': 4},
    'C N=1': {'model.num_layers': 1},
    'C N=2': {'model.num_layers': 2},
    'C N=4': {'model.num_layers': 4},
    'C d_model=32': {'model.d_model': 32},
    'C d_model=128': {'model.d_model': 128},
    'C d_ff=128': {'model.d_ff': 128},
    'C d_ff=512': {'model.d_ff': 512},
    'D dropout=0.0': {'model.dropout': 0.0},
    'D dropout=0.2': {'model.dropout': 0.2},
    'D smoothing=0.0': {'train.loss': 'cross_entropy(label_smoothing=0.0)'},
    'D smoothing=0.2': {'train.loss': 'cross_entropy(label_smoothing=0.2)'},
    'E learned': {'model.positions': 'learned'},
    'big': {
        'model.d_model': 128,
        'model.d_ff': 512,
        'model.num_heads': 16,
        'model.dropout': 0.3,
        'train.steps': 1_800,
    },
}


def published() -> dict[str, dict[str, float]]:
    """Returns the paper's perplexity, BLEU and parameters of each arm's row."""
    return dict(zip(ARMS, table3.published().values(), strict=True))


def get_config() -> dict:
    return dict(
        question=table3.QUESTION,
        source=table3.SOURCE,
        config='configs/wmt_tiny.py',
        overrides=SIZES,
        arms=ARMS,
        tune=dict(field='optimizer.schedule.peak', values=[3e-3, 6e-3, 1.2e-2, 2.4e-2]),
        seeds=(0, 1, 2),
        base='base',
        margin=2.0,
        measure='test bleu',
        published=published(),
        differs=(
            'Pre-norm, not post-norm; English-German sentences of a grammar, 20,000 of '
            'them, not WMT14; 600 steps of 1,024 tokens, not 100,000 of 25,000; widths '
            'are an eighth and depths half of the published; the rate falls as a '
            'cosine and does not depend on d_model.'
        ),
    )
