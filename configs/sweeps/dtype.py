"""`wmt_small` in float32 and in bfloat16."""

DTYPES = ('float32', 'bfloat16')


def get_config() -> dict:
    return dict(
        question='Does a model that is trained in bfloat16 translate as well?',
        source='Micikevicius et al. 2018, "Mixed Precision Training"',
        config='configs/wmt_small.py',
        overrides={'evaluation.every': 1_300},
        arms={dtype: {'model.dtype': dtype} for dtype in DTYPES},
        seeds=(0, 1, 2),
        base='float32',
        contrasts=[('bfloat16', 'float32')],
        margin=0.5,
        measure='test bleu',
        differs='float32 sums and parameters; the paper has float16 with loss scaling.',
    )
