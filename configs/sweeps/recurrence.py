"""Recurrence against attention at equal parameters, each model at its own rate.

The scores by grammatical phenomenon show long-distance agreement. Sentences of `long`
exceed those of training.
"""

# Widths with about as many parameters as the Transformer's 360,192.
MODELS = {
    'Transformer': {},
    'GRU': {'model.architecture': 'recurrent', 'model.d_model': 63},
    'LSTM': {'model.architecture': 'recurrent(cell="lstm")', 'model.d_model': 57},
}


def get_config() -> dict:
    return dict(
        question='What does attention bring over recurrence at equal parameters?',
        source=(
            'Vaswani et al. 2017, §4; Bahdanau et al. 2015, for the recurrent model '
            'with additive attention'
        ),
        config='configs/wmt_tiny.py',
        overrides={
            'model.dtype': 'bfloat16',
            'optimizer.schedule': 'cosine(peak=6e-3, warmup=0.15)',
            'evaluation.sets': 'test,long',
            'evaluation.every': 600,
            'evaluation.decode': 'greedy',
        },
        arms=MODELS,
        tune=dict(
            field='optimizer.schedule.peak', values=[2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2]
        ),
        seeds=(0, 1, 2, 3, 4),
        base='Transformer',
        margin=2.0,
        measure='test bleu',
        differs='About 360,000 parameters, on sentences of a grammar, for 600 steps.',
    )
