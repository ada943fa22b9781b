"""An encoder-decoder and decoders alone, with the recipe of modern language models.

RedLLM, with 3 + 3 layers, and DecLLM, with 7, have equally many parameters (0.02%
apart). DecLLM takes 1.9 times the FLOPs per step.
"""

# Shared by all arms. The architecture is that of Zhang et al. 2025; 171 is 8/3 of 64.
RECIPE = {
    'model.norm': 'rms',
    'model.residual': 'pre_norm',
    'model.feed_forward': 'swiglu',
    'model.d_ff': 171,
    'model.positions': 'rotary',
    'model.dtype': 'bfloat16',
    'optimizer.schedule': 'cosine(peak=1.2e-2, warmup=0.15)',
    'evaluation.sets': 'test,long',
    'evaluation.every': 600,
    'evaluation.decode': 'greedy',
}
REDLLM = {
    'model.num_layers': 3,
    'model.cross.positions': 'rotary',
    'model.continuous_positions': True,
}
DECODER = {'model.num_layers': 7}
MODELS = {
    'RedLLM': REDLLM,
    'RedLLM, positions from 0': REDLLM | {'model.continuous_positions': False},
    'DecLLM': DECODER | {'model.architecture': 'decoder_only'},
    'PrefixLM': DECODER | {'model.architecture': 'prefix_lm'},
}


def get_config() -> dict:
    return dict(
        question=(
            'At equal parameters, does an encoder-decoder translate better than a '
            'decoder alone?'
        ),
        source=(
            'Zhang et al. 2025, "Encoder-Decoder or Decoder-Only? Revisiting '
            'Encoder-Decoder Large Language Model" (RedLLM and DecLLM), for the '
            'recipe and for continuous positions; Raffel et al. 2020, §3.2, for the '
            'prefix language model'
        ),
        config='configs/wmt_tiny.py',
        overrides=RECIPE,
        arms=MODELS,
        tune=dict(field='optimizer.schedule.peak', values=[6e-3, 1.2e-2, 2.4e-2]),
        seeds=(0, 1, 2, 3),
        base='DecLLM',
        margin=2.0,
        measure='test bleu',
        differs=(
            'About 473,500 parameters, trained on translations of a grammar for 600 '
            'steps, with the loss of the target alone; the papers pretrain language '
            'models of 150 million to 8 billion, and normalize queries, keys and '
            'values.'
        ),
    )
