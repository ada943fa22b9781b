"""Multi30k, English to German: twice the 30 million tokens, alone and with R-Drop.

Needs the folder `multi30k/` of results/README.md, with all four test sets.
"""

SETS = ('test_2016_flickr', 'test_2017_flickr', 'test_2017_mscoco', 'test_2018_flickr')


def get_config() -> dict:
    return dict(
        question='What does a tiny Transformer reach on Multi30k, from text alone?',
        source=(
            'Wu et al. 2021, "Good for Misconceived Reasons" (arXiv 2105.14462), whose '
            'tiny Transformer of text alone is as good as multimodal models'
        ),
        config='configs/wmt_small.py',
        overrides={
            'data': 'text(path="multi30k", source="en", target="de")',
            'tokenizer': 'sentencepiece(vocab_size=8000, alpha=0.1)',
            'batch.tokens': 4_096,
            # With post-norm, the model hardly uses the source: 13.4 BLEU with seed 0.
            'model.residual': 'pre_norm',
            'model.dropout': 0.3,
            'model.dtype': 'bfloat16',
            'optimizer.schedule': 'cosine(peak=3e-3, warmup=0.1)',
            'train.steps': 8_000,
            'evaluation.every': 2_000,
            'evaluation.average': 5,
            'evaluation.sets': ','.join(SETS),
            'checkpoint.every': 400,
            'checkpoint.keep': 5,
        },
        arms={
            'BPE-dropout': {},
            'twice the tokens': {'batch.tokens': 8_192},
            'twice the tokens, R-Drop': {
                'batch.tokens': 8_192,
                'train.loss': 'r_drop(weight=5.0, label_smoothing=0.1)',
            },
        },
        seeds=(0, 1, 2),
        base='BPE-dropout',
        measure='test_2016_flickr bleu',
        differs=(
            'Cased, raw text and sacreBLEU; the paper has lower-cased tokens. Its tiny '
            'Transformer has 4 and 4 layers of width 128.'
        ),
    )
