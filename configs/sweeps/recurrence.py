"""Recurrence against attention at equal parameters, at two learning rates each.

    python -m experiments.sweep --config=configs/sweeps/recurrence.py --workers=2

A model's better rate is the one with the higher BLEU on `val`, in the report's table of
all scores; `test` then tells how good it is, and chooses nothing. The report's scores
by the grammar's phenomena tell of agreement over a distance; `long` has sentences of
more words than any in training. With two workers on two cores it takes about half an
hour.
"""

# Widths with about as many parameters as the Transformer's 360,192.
MODELS = {
    'Transformer': {},
    'GRU': {'model.architecture': 'recurrent', 'model.d_model': 63},
    'LSTM': {'model.architecture': 'recurrent(cell="lstm")', 'model.d_model': 57},
}
RATES = ('2e-3', '6e-3')


def arms() -> dict[str, dict]:
    found = {}
    for name, model in MODELS.items():
        for rate in RATES:
            schedule = f'cosine(peak={rate}, warmup=0.15)'
            found[f'{name}, rate {rate}'] = model | {'optimizer.schedule': schedule}
    return found


def get_config() -> dict:
    return dict(
        question='What does attention bring over recurrence at equal parameters?',
        source=(
            'Vaswani et al. 2017, §4; Bahdanau et al. 2015, for the recurrent model '
            'with additive attention'
        ),
        config='configs/wmt_tiny.py',
        overrides={'evaluation.sets': 'val,test,long'},
        arms=arms(),
        seeds=(0, 1, 2),
        base='Transformer, rate 6e-3',
        measure='test bleu',
        differs='About 360,000 parameters, on sentences of a grammar, for 600 steps.',
    )
