"""The four WMT workloads of MLCommons AlgoPerf, with their validation targets.

They need eight GPUs; `algoperf_small` has the same arms for two CPU cores. AlgoPerf's
"attention temperature" of 4 is a temperature of 1/4 here.
"""

SOURCE = (
    'Dahl et al. 2023, "Benchmarking Neural Network Training Algorithms" (MLCommons '
    'AlgoPerf): validation targets of WMT, post-LN, attention temperature and GLU tanh'
)
ARMS = {
    'pre-norm': {'model.residual': 'pre_norm'},
    'post-norm': {'model.residual': 'post_norm'},
    'attention temperature': {
        'model.residual': 'pre_norm',
        'model.attention': 'softmax(temperature=0.25, dropout=0.1)',
    },
    'gated tanh': {'model.residual': 'pre_norm', 'model.feed_forward': 'gated_tanh'},
}
PUBLISHED = {
    'pre-norm': {'bleu': 30.85},
    'post-norm': {'bleu': 30.08},
    'attention temperature': {'bleu': 29.34},
    'gated tanh': {'bleu': 29.58},
}
MODEL = {
    'model.attention': 'softmax(dropout=0.1)',
    'model.positions': 'sinusoidal_t2t',
    'model.dropout': 0.1,
}


def get_config() -> dict:
    return dict(
        question='Which variants of the Transformer does a fixed recipe train well?',
        source=SOURCE,
        config='configs/wmt_base.py',
        overrides=MODEL
        | {
            'data': 'tfds(name="wmt14_translate/de-en", source="de", target="en")',
            'tokenizer': 'sentencepiece(vocab_size=32000)',
            'batch.tokens': 32_768,
            'model.d_model': 1_024,
            'model.num_heads': 16,
            'model.d_ff': 1_024,
            'optimizer.schedule': 'cosine(peak=1e-3, warmup=0.05)',
            'train.steps': 133_333,
            'evaluation.average': 1,
        },
        arms=ARMS,
        seeds=(0,),
        base='pre-norm',
        measure='val bleu',
        published=PUBLISHED,
        differs=(
            'Training text is that of WMT14, 4.5 million pairs, not of WMT17, 5.9 '
            'million; the validation set is the same newstest2013. There is no '
            'dropout within the feed-forward network. AlgoPerf initializes embeddings '
            'with N(0, 1) and divides logits by √d_model; here embeddings start from '
            'N(0, 1/d_model) and are multiplied by √d_model. The schedule is not '
            'tuned, but the targets are the best scores of many tuned ones.'
        ),
    )
