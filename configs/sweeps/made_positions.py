"""Positions on inputs twice as long as in training, on generated tasks.

Training has sources of 4 to 20 words, the set `longer` of 21 to 40.
"""

TASKS = ('copy', 'reverse', 'sort')
POSITIONS = {
    name: {'model.positions': name}
    for name in ('sinusoidal', 'none', 'rotary', 'transformer_xl', 't5', 'alibi')
}
# A causal decoder may count its tokens without positions.
POSITIONS['none in the decoder'] = {'model.decoder.positions': 'none'}


def get_config() -> dict:
    return dict(
        question='Which positions generalize to longer inputs?',
        source=(
            'Kazemnejad et al. 2023, "The Impact of Positional Encoding on Length '
            'Generalization in Transformers" (arXiv 2305.19466), for decoder-only '
            'models: ALiBi, rotary and absolute positions "are not well suited for '
            'length generalization in downstream tasks", and no positions do better'
        ),
        config='configs/made.py',
        overrides={
            'batch.tokens': 1_024,
            'model.d_model': 64,
            'model.num_layers': 2,
            'model.num_heads': 4,
            'model.d_ff': 256,
            'model.dtype': 'bfloat16',
            'optimizer.schedule': 'cosine(peak=3e-3, warmup=0.1)',
            'train.steps': 1_500,
            'checkpoint.every': 500,
            'evaluation.every': 1_500,
            'evaluation.sets': 'test,longer',
        },
        factors={
            'task': {
                name: {'data': f'made(task="{name}", longest=20)'} for name in TASKS
            },
            'positions': POSITIONS,
        },
        seeds=(0, 1, 2),
        base='copy, sinusoidal',
        contrasts=[
            (f'{task}, {name}', f'{task}, sinusoidal')
            for task in TASKS
            for name in POSITIONS
            if name != 'sinusoidal'
        ],
        measure='longer exact_match',
        differs=(
            'An encoder and a decoder of two layers of width 64, for 1,500 steps; the '
            'paper studies decoder-only models of 107 million parameters.'
        ),
    )
