"""Components of recent years in the forms that papers publish, judged by loss.

`modern` applies gates, sinks and differential attention everywhere, and its nGPT has
sinusoids and tied embeddings. Every arm has the base's width, depth and steps, and its
own best rate. `DEPARTURES` says what still differs from a paper.
"""

from collections.abc import Iterable

WIDTH = 64
RATES = [8e-3, 1.6e-2, 3.2e-2]
# With one trial per rate, noise chooses the rate more often.
TRIAL_SEEDS = (100, 101)
COMBINATION = 'RMSNorm, SwiGLU, rotary, QK norm'
DECODER_ONLY = 'Published for decoder-only models.'
EVERYWHERE = (
    'Published for causal self-attention; here also in the encoder and in '
    'cross-attention.'
)


def parts(width: int, num_layers: int = 2) -> dict[str, dict]:
    """Returns the arms' fields, for a model with 4 heads and d_ff = 4 `width`."""
    inner = 4 * width
    # SwiGLU has three matrices without biases, ReLU two with biases.
    d_ff = round((2 * width * inner + inner + width) / (3 * width))
    swiglu = {'model.feed_forward': f'swiglu(d_ff={d_ff})'}
    rms = {'model.norm': 'rms'}
    rotary = {'model.positions': 'rotary'}
    qk_norm = {'model.attention': 'softmax(query_key_norm=True)'}
    untied = {'model.tie': 'none'}
    ngpt = {
        'model.residual': f'ngpt(step={1 / num_layers})',
        'model.norm': 'rms(learned=False)',
        'optimizer.name': 'normalized_adam(b2=0.98, eps=1e-9)',
        # No warm-up. The tuned peak replaces this one.
        'optimizer.schedule': 'cosine(peak=1e-2, warmup=0.0)',
    }
    d_k = width // 4
    return {
        'base': {},
        'base, 2 heads': {'model.num_heads': 2},
        'base, untied': untied,
        'gated': {'model.attention': 'gated'},
        'gated, decoder': {'model.decoder.attention': 'gated'},
        'gated, start at 1': {'model.attention': 'gated(start_at_one=True)'},
        'sink': {'model.attention': 'sink'},
        'sink, decoder': {'model.decoder.attention': 'sink'},
        'differential V1': {'model.attention': 'differential(lambda_rate=0.1)'},
        'differential V1, 8 heads': {
            'model.attention': 'differential(lambda_rate=0.1)',
            'model.num_heads': 8,
        },
        'differential V1, decoder': {
            'model.decoder.attention': 'differential(lambda_rate=0.1)'
        },
        'differential V2': {
            'model.attention': 'differential_v2',
            'model.num_heads': 8,
            'model.num_kv_heads': 4,
            'model.d_k': d_k,
            'model.d_v': d_k,
        },
        'differential V2, decoder': {
            'model.decoder.attention': 'differential_v2',
            'model.decoder.num_heads': 8,
            'model.decoder.num_kv_heads': 4,
            'model.decoder.d_k': d_k,
            'model.decoder.d_v': d_k,
            'model.cross.num_heads': 4,
        },
        'forgetting': {
            'model.decoder.attention': 'forgetting',
            'model.decoder.positions': 'none',
        },
        'value residual': {'model.block': 'value_residual'},
        'hyper-connections': {'model.residual': 'hyper'},
        'mHC': {'model.residual': 'mhc'},
        'transparent': {'model.architecture': 'encoder_decoder(reads="mixture")'},
        'layer-wise': {'model.architecture': 'encoder_decoder(reads="same")'},
        'nGPT': ngpt | qk_norm | swiglu | rotary | untied,
        'multi-token': {'model.architecture': 'multi_token(heads=2)'},
        'RMSNorm': rms,
        'SwiGLU': swiglu,
        'rotary': rotary,
        'QK norm': qk_norm,
        COMBINATION: rms | swiglu | rotary | qk_norm,
    }


PARTS = parts(WIDTH)
CONTROLS = {
    'differential V1': 'base, 2 heads',
    'nGPT': 'base, untied',
}
DEPARTURES = {
    'gated': EVERYWHERE,
    'gated, decoder': DECODER_ONLY,
    'gated, start at 1': f'Published gates start near ½. {EVERYWHERE}',
    'sink': EVERYWHERE,
    'sink, decoder': DECODER_ONLY,
    'differential V1': (
        'Two pairs of heads, where the paper has 8 and more; λ has a tenth of the '
        f'rate. {EVERYWHERE}'
    ),
    'differential V1, 8 heads': (
        f'Heads of 8 features; λ has a tenth of the rate. {EVERYWHERE}'
    ),
    'differential V1, decoder': (
        'Two pairs of heads; λ has a tenth of the rate. The encoder and '
        'cross-attention are plain.'
    ),
    'differential V2': EVERYWHERE,
    'differential V2, decoder': DECODER_ONLY,
    'forgetting': (
        'The decoder has no positions, as in the paper; the encoder has sinusoids. No '
        'output gate, output norm, query and key norm or shift of keys and values.'
    ),
    'value residual': 'Each stack has its own first layer.',
    'hyper-connections': (
        'Output matrices are not rescaled by √n at the start. The paper rescales them, '
        'and leaves the direction open.'
    ),
    'transparent': 'Two layers; the paper has up to 20.',
    'layer-wise': 'Embeddings are shared, but the parameters of the stacks are not.',
    'nGPT': (
        'Three matrices hold scales: the norms of `gate`, `up` and the output rows '
        'replace s_u, s_v and s_z. Linear biases are absent. Batches are small.'
    ),
    'multi-token': (
        'A trunk of one layer, and 18% more parameters for the second head, which the '
        'paper takes from the trunk.'
    ),
}


def departures(arms: Iterable[str]) -> dict[str, str]:
    """Returns `DEPARTURES` of the arms with these names."""
    return {arm: DEPARTURES[arm] for arm in arms if arm in DEPARTURES}


def get_config() -> dict:
    arms = [part for part in PARTS if not part.startswith('base')]
    return dict(
        question='Which components help in the form that their paper describes?',
        source=(
            'Qiu et al. 2025 (gated attention); Xiao et al. 2023 and gpt-oss (sink); '
            'Ye et al. 2024 (differential V1) and 2026 (V2); Lin et al. 2025 '
            '(forgetting); Zhou et al. 2024 (value residual); Zhu et al. 2024 '
            '(hyper-connections); Xie et al. 2025 (mHC); Bapna et al. 2018 '
            '(transparent); He et al. 2018 (layer-wise); Loshchilov et al. 2024 '
            '(nGPT); Gloeckle et al. 2024 (multi-token); Zhang and Sennrich 2019 '
            '(RMSNorm); Shazeer 2020 (SwiGLU); Su et al. 2021 (rotary); Henry et al. '
            '2020 (QK norm)'
        ),
        config='configs/wmt_tiny.py',
        overrides={
            'model.d_model': WIDTH,
            'model.d_ff': 4 * WIDTH,
            'model.dtype': 'bfloat16',
            'evaluation.every': 600,
            'evaluation.decode': 'greedy',
        },
        # The base's longer run gives its loss at the time that other arms take.
        arms=PARTS | {'base, 1,200 steps': {'train.steps': 1_200}},
        tune=dict(field='optimizer.schedule.peak', values=RATES, seeds=TRIAL_SEEDS),
        seeds=(0, 1, 2),
        base_seeds=tuple(range(12)),
        base='base',
        contrasts=[(arm, 'base') for arm in arms] + list(CONTROLS.items()),
        margin='5%',
        measure=['test loss', 'test bleu'],
        departures=DEPARTURES,
        differs=(
            f'Two layers of width {WIDTH} on sentences of a grammar, for 600 steps; '
            'most papers train language models of over 100 million parameters.'
        ),
    )
