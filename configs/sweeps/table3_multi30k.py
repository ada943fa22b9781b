"""The rows of `table3_small` on Multi30k.

Needs the folder `multi30k/` with train, val and test_2016_flickr in `.en` and `.de`.
Takes about four hours with two workers on two cores.
"""

from configs.sweeps import table3_small


def get_config() -> dict:
    sweep = table3_small.get_config()
    sweep['overrides'] = table3_small.SIZES | {
        'data': 'text(path="multi30k", source="en", target="de")',
        'tokenizer': 'sentencepiece(vocab_size=4000)',
        'batch.tokens': 2_048,
        'train.steps': 1_500,
        'checkpoint.every': 1_500,
        'evaluation.every': 500,
        'evaluation.sets': 'test_2016_flickr',
    }
    sweep['arms'] = table3_small.ARMS | {
        'big': table3_small.ARMS['big'] | {'train.steps': 4_500}
    }
    sweep['measure'] = 'test_2016_flickr bleu'
    sweep['differs'] = (
        'Pre-norm, not post-norm; captions of Multi30k, 29,000 pairs, not WMT14; 1,500 '
        'steps of 2,048 tokens, not 100,000 of 25,000; widths are an eighth and depths '
        'half of the published; the rate falls as a cosine and does not depend on '
        'd_model.'
    )
    return sweep
