"""Multi30k, English to German: setting (2) of results/README.md with twice the tokens.

Like the published tiny Transformer, it is post-norm without BPE-dropout. Batches have
as many tokens as two GPUs see there. Compare with the arms of `multi30k`, which needs
the same data.
"""

SETS = ('test_2016_flickr', 'test_2017_flickr', 'test_2017_mscoco', 'test_2018_flickr')


def get_config() -> dict:
    return dict(
        question='What does a post-norm tiny Transformer reach on Multi30k?',
        source=(
            'Wu et al. 2021, "Good for Misconceived Reasons" (arXiv 2105.14462), whose '
            'tiny Transformer of text alone is as good as multimodal models'
        ),
        config='configs/wmt_small.py',
        overrides={
            'data': 'text(path="multi30k", source="en", target="de")',
            'tokenizer': 'sentencepiece(vocab_size=8000)',
            'batch.tokens': 8_192,
            'model.residual': 'post_norm',
            'model.dropout': 0.3,
            'model.dtype': 'bfloat16',
            'optimizer.schedule': 'cosine(peak=2.5e-3, warmup=0.1)',
            'train.steps': 8_000,
            'evaluation.every': 2_000,
            'evaluation.average': 5,
            'evaluation.sets': ','.join(SETS),
            'checkpoint.every': 400,
            'checkpoint.keep': 5,
        },
        arms={'post-norm': {}},
        seeds=(0, 1, 2),
        base='post-norm',
        measure='test_2016_flickr bleu',
        differs=(
            'Cased, raw text and sacreBLEU; the paper has lower-cased tokens. Its tiny '
            'Transformer has 4 and 4 layers of width 128.'
        ),
    )
