"""Batches and models for inflection, small enough for two CPU cores.

Needs the data: `git clone https://github.com/sigmorphon/conll2017`.
"""

MODELS = {
    'LSTM': {'model.architecture': 'recurrent(cell="lstm")', 'model.num_layers': 1},
    'Transformer': {},
}
# Some 24 and 190 forms of ten letters.
BATCHES = {'small batches': 256, 'large batches': 2_048}
PAIRS = [
    ('Transformer, small batches', 'LSTM, small batches'),
    ('Transformer, large batches', 'LSTM, large batches'),
    ('Transformer, large batches', 'Transformer, small batches'),
    ('LSTM, large batches', 'LSTM, small batches'),
]


def get_config() -> dict:
    return dict(
        question='Which needs larger batches to inflect words, LSTM or Transformer?',
        source=(
            'Wu, Cotterell and Hulden 2021, "Applying the Transformer to '
            'Character-level Transduction" (arXiv 2005.10213): "in contrast to '
            'recurrent sequence-to-sequence models, the batch size plays a crucial '
            'role in the performance of the transformer on character-level tasks, and '
            'we show that with a large enough batch size, the transformer does indeed '
            'outperform recurrent models"'
        ),
        config='configs/inflection.py',
        overrides={
            'model.dtype': 'bfloat16',
            'optimizer.schedule': 'cosine(peak=2e-3, warmup=0.1)',
            'train.steps': 2_000,
            'checkpoint.every': 500,
            'evaluation.every': 2_000,
        },
        factors={
            'model': MODELS,
            'batches': {name: {'batch.tokens': n} for name, n in BATCHES.items()},
        },
        seeds=(0, 1, 2),
        base='LSTM, small batches',
        contrasts=PAIRS,
        measure='test exact_match',
        differs=(
            'A Transformer of 3 and 3 layers of width 128 and an LSTM of one and one '
            'of that width, each for 2,000 steps, on German; theirs have 4 and 4 of '
            'width 256 and 2 and 1 of width 400, on all languages.'
        ),
    )
