"""A deep encoder with a shallow decoder, with as many layers or more."""

# Layers of the encoder and of the decoder.
DEPTHS = ((3, 3), (1, 5), (2, 4), (4, 2), (5, 1), (8, 1))


def arms() -> dict[str, dict]:
    found = {}
    for encoder, decoder in DEPTHS:
        overrides = {'model.num_layers': encoder}
        if encoder != decoder:
            overrides['model.decoder.num_layers'] = decoder
        found[f'{encoder} + {decoder}'] = overrides
    return found


def get_config() -> dict:
    return dict(
        question='Where do layers help more, in the encoder or in the decoder?',
        source=(
            'Kasai et al. 2021, "Deep Encoder, Shallow Decoder": 12 + 1 layers '
            'translate as well as 6 + 6, and faster'
        ),
        config='configs/wmt_tiny.py',
        overrides={
            'model.dtype': 'bfloat16',
            'optimizer.schedule': 'cosine(peak=1.2e-2, warmup=0.15)',
            'evaluation.every': 600,
            'evaluation.decode': 'greedy',
        },
        arms=arms(),
        tune=dict(field='optimizer.schedule.peak', values=[3e-3, 6e-3, 1.2e-2, 2.4e-2]),
        seeds=(0, 1, 2, 3),
        base='3 + 3',
        margin=2.0,
        measure='test bleu',
        differs=(
            'A model of width 64 with 6 layers (the last arm has 9) on sentences of a '
            'grammar, for 600 steps; the paper trains 12 layers on WMT.'
        ),
    )
