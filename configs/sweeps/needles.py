"""One head averages: does it blur where several words of the source matter at once?

Each target word is made from one or two source words, which one layer per stack reads
with one, two or four heads of the same total width.
"""


def get_config() -> dict:
    return dict(
        question='Does one head blur where two words matter at the same time?',
        source=(
            'Vaswani et al. 2017, §3.2.2: "with a single attention head, averaging '
            'inhibits" attending to several positions at once'
        ),
        config='configs/wmt_tiny.py',
        overrides={
            'tokenizer': 'sentencepiece(vocab_size=1000)',
            'model.dtype': 'bfloat16',
            'model.num_layers': 1,
            'evaluation.decode': 'greedy',
            'train.steps': 1_500,
            'checkpoint.every': 1_500,
            'evaluation.every': 1_500,
        },
        factors=dict(
            words={
                'one needle': {'data': 'needles(count=1)'},
                'two needles': {'data': 'needles(count=2)'},
            },
            heads={f'h={heads}': {'model.num_heads': heads} for heads in (1, 2, 4)},
        ),
        seeds=(0, 1, 2, 3, 4),
        base='two needles, h=1',
        contrasts=[
            (f'{words}, h={heads}', f'{words}, h=1')
            for words in ('one needle', 'two needles')
            for heads in (2, 4)
        ],
        margin=2.0,
        measure='test bleu',
        differs='A synthetic task; the arms of one needle are the control.',
    )
