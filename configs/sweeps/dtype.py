"""`wmt_small` in float32 and in bfloat16, on two data sets.

Needs the folder `multi30k/` of results/README.md. No run is chosen by `val`.
"""

DATA = {
    'grammar': {},
    'Multi30k': {'data': 'text(path="multi30k", source="en", target="de")'},
}
DTYPES = ('float32', 'bfloat16')


def get_config() -> dict:
    return dict(
        question='Does a model that is trained in bfloat16 translate as well?',
        source='Micikevicius et al. 2018, "Mixed Precision Training" (arXiv 1710.03740)',
        config='configs/wmt_small.py',
        overrides={'evaluation.every': 1_300, 'evaluation.sets': 'val'},
        factors={
            'data': DATA,
            'dtype': {dtype: {'model.dtype': dtype} for dtype in DTYPES},
        },
        seeds=(0, 1, 2),
        base='grammar, float32',
        contrasts=[(f'{data}, bfloat16', f'{data}, float32') for data in DATA],
        margin=0.5,
        measure='val bleu',
        differs='float32 sums and parameters; the paper has float16 with loss scaling.',
    )
