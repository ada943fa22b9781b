"""The splits of SCAN that a small Transformer solves, and those that it doesn't."""

from configs.sweeps import scan_length_small

SPLITS = ('simple', 'length', 'addprim_jump', 'addprim_turn_left')


def get_config() -> dict:
    return dict(
        question='Does a Transformer combine known commands in new ways?',
        source=(
            'Lake and Baroni 2018, "Generalization without Systematicity" (arXiv '
            '1711.00350), for recurrent models: new commands are understood "when the '
            'differences between training and test commands are small", but not if '
            'they require systematic composition; Ontañón et al. 2022 (arXiv '
            '2108.04378), for Transformers'
        ),
        config='configs/scan.py',
        overrides=scan_length_small.SHORTER,
        arms={split: {'data': f'scan(split="{split}")'} for split in SPLITS},
        seeds=(0, 1, 2),
        base='simple',
        measure='test exact_match',
        differs=(
            'A Transformer of 3 and 3 layers of width 128, for 2,000 steps of about '
            '2,000 target tokens.'
        ),
    )
