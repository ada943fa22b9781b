"""`wmt_small` in float32 and in bfloat16, with enough seeds to show equivalence.

The standard deviation over seeds is 4% of the loss and 0.5 BLEU (three other seeds). If
the dtypes do not differ, 16 seeds show with a power of 84% that they are equivalent
within 5% of the loss. Equivalence within 0.5 BLEU would need 24 or more.
"""

DTYPES = ('float32', 'bfloat16')


def get_config() -> dict:
    return dict(
        question='Does a model that is trained in bfloat16 translate as well?',
        source='Micikevicius et al. 2018, "Mixed Precision Training"',
        config='configs/wmt_small.py',
        overrides={'evaluation.every': 1_300},
        arms={dtype: {'model.dtype': dtype} for dtype in DTYPES},
        seeds=tuple(range(10, 26)),
        base='float32',
        contrasts=[('bfloat16', 'float32')],
        measure='test loss',
        differs='float32 sums and parameters; the paper has float16 with loss scaling.',
    )
