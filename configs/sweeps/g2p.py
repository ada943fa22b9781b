"""Letters to phonemes at the published depths. `g2p_small` is for two cores."""

# Published error rates are of phonemes without stress.
DATA = 'cmudict(stress=False)'
DEPTHS = {'3 and 3 layers': 3, '4 and 4 layers': 4}


def get_config() -> dict:
    return dict(
        question='How many phonemes and words does a Transformer get wrong, by depth?',
        source=(
            'Yolchuyeva, Németh and Gyires-Tóth 2019, "Transformer based '
            'Grapheme-to-Phoneme Conversion" (arXiv 2004.06338); Wu, Cotterell and '
            'Hulden 2021 (arXiv 2005.10213), for the size and training: '
            'https://github.com/shijie-wu/neural-transducer'
        ),
        config='configs/g2p.py',
        overrides={
            'data': DATA,
            # About 400 words.
            'batch.tokens': 4_096,
            'model.d_model': 256,
            'model.num_heads': 4,
            'model.d_ff': 1_024,
            'model.dropout': 0.3,
            'optimizer.b2': 0.98,
            'optimizer.clip': 1.0,
            'optimizer.schedule': 'noam(warmup=4_000, factor=1.012)',
            'train.steps': 20_000,
            'evaluation.every': 2_000,
        },
        arms={name: {'model.num_layers': n} for name, n in DEPTHS.items()},
        seeds=(0, 1, 2),
        base='4 and 4 layers',
        measure='test exact_match',
        differs=(
            'A hash selects a twentieth of the words as `test`, unlike the split of '
            'these papers; all pronunciations of a word are right.'
        ),
    )
