"""The arms of `algoperf`, small enough for two CPU cores.

    python -m experiments.sweep --config=configs/sweeps/algoperf_small.py --workers=2

With two workers on two cores it takes about ten minutes.
"""

from configs.sweeps import algoperf


def get_config() -> dict:
    return algoperf.get_config() | dict(
        config='configs/wmt_tiny.py',
        overrides=algoperf.MODEL | {'model.d_ff': 64},
        seeds=(0, 1, 2),
        measure='test bleu',
        differs=(
            'A model of width 64 on sentences of a grammar, English to German, for 600 '
            'steps: the targets are of another task, and only the order of the arms '
            'can be compared.'
        ),
    )
