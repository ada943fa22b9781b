"""The arms of `algoperf`, small enough for two CPU cores."""

from configs.sweeps import algoperf


def get_config() -> dict:
    return algoperf.get_config() | dict(
        config='configs/wmt_tiny.py',
        overrides=algoperf.MODEL
        | {
            'model.d_ff': 64,
            'model.dtype': 'bfloat16',
            'optimizer.schedule': 'cosine(peak=1.2e-2, warmup=0.15)',
            'evaluation.every': 600,
            'evaluation.decode': 'greedy',
        },
        tune=dict(field='optimizer.schedule.peak', values=[3e-3, 6e-3, 1.2e-2, 2.4e-2]),
        seeds=(0, 1, 2, 3, 4),
        margin=2.0,
        measure='test bleu',
        differs=(
            'A model of width 64 on sentences of a grammar, English to German, for 600 '
            'steps: the targets are of another task, and only the order of the arms '
            'can be compared.'
        ),
    )
