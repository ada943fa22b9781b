"""Table 3 of the paper at its scale: the effect of each part of the Transformer.

`table3_small` has the same rows for two CPU cores.
"""

SOURCE = (
    'Vaswani et al. 2017, "Attention Is All You Need", Table 3: newstest2013, beam 4, '
    'length penalty 0.6, no averaging of checkpoints'
)
QUESTION = 'What does each component of the Transformer contribute?'

# Perplexity, BLEU and millions of parameters, as published.
_PUBLISHED = {
    'base': (4.92, 25.8, 65),
    'A h=1': (5.29, 24.9, None),
    'A h=4': (5.00, 25.5, None),
    'A h=16': (4.91, 25.8, None),
    'A h=32': (5.01, 25.4, None),
    'B d_k=16': (5.16, 25.1, 58),
    'B d_k=32': (5.01, 25.4, 60),
    'C N=2': (6.11, 23.7, 36),
    'C N=4': (5.19, 25.3, 50),
    'C N=8': (4.88, 25.5, 80),
    'C d_model=256': (5.75, 24.5, 28),
    'C d_model=1024': (4.66, 26.0, 168),
    'C d_ff=1024': (5.12, 25.4, 53),
    'C d_ff=4096': (4.75, 26.2, 90),
    'D dropout=0.0': (5.77, 24.6, None),
    'D dropout=0.2': (4.95, 25.5, None),
    'D smoothing=0.0': (4.67, 25.3, None),
    'D smoothing=0.2': (5.47, 25.7, None),
    'E learned': (4.92, 25.7, None),
    'big': (4.33, 26.4, 213),
}
# Omitted d_k and d_v default to d_model / num_heads, as in the table.
ARMS = {
    'base': {},
    'A h=1': {'model.num_heads': 1},
    'A h=4': {'model.num_heads': 4},
    'A h=16': {'model.num_heads': 16},
    'A h=32': {'model.num_heads': 32},
    'B d_k=16': {'model.d_k': 16},
    'B d_k=32': {'model.d_k': 32},
    'C N=2': {'model.num_layers': 2},
    'C N=4': {'model.num_layers': 4},
    'C N=8': {'model.num_layers': 8},
    'C d_model=256': {'model.d_model': 256},
    'C d_model=1024': {'model.d_model': 1024},
    'C d_ff=1024': {'model.d_ff': 1024},
    'C d_ff=4096': {'model.d_ff': 4096},
    'D dropout=0.0': {'model.dropout': 0.0},
    'D dropout=0.2': {'model.dropout': 0.2},
    'D smoothing=0.0': {'train.loss': 'cross_entropy(label_smoothing=0.0)'},
    'D smoothing=0.2': {'train.loss': 'cross_entropy(label_smoothing=0.2)'},
    'E learned': {'model.positions': 'learned'},
    'big': {
        'model.d_model': 1024,
        'model.d_ff': 4096,
        'model.num_heads': 16,
        'model.dropout': 0.3,
        'train.steps': 300_000,
    },
}


def published() -> dict[str, dict[str, float]]:
    """Returns perplexity, BLEU and parameters of each row, if the table has them."""
    numbers = {}
    for arm, (perplexity, bleu, millions) in _PUBLISHED.items():
        numbers[arm] = {'perplexity': perplexity, 'bleu': bleu}
        if millions is not None:
            numbers[arm]['parameters'] = millions * 1e6
    return numbers


def get_config() -> dict:
    return dict(
        question=QUESTION,
        source=SOURCE,
        config='configs/wmt_base.py',
        overrides={'evaluation.average': 1},
        arms=ARMS,
        seeds=(0,),
        base='base',
        measure='val bleu',
        published=published(),
        differs=(
            'WMT14 English-German from TFDS, with a joint SentencePiece vocabulary of '
            '37,000; BLEU is cased sacreBLEU 13a, without compound splitting; '
            'perplexity is per piece of that vocabulary. The published parameter '
            'counts imply about 41,000 pieces, and 36,000 for `big`.'
        ),
    )
