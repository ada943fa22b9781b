"""The components of `modern`, each added to RMSNorm, SwiGLU, rotary and QK norm."""

from configs.sweeps import modern

# With half of these rates, the combination was best at the highest.
RATES = [8e-3, 1.6e-2, 3.2e-2, 6.4e-2]
QK_NORM = 'query_key_norm=True'
ADDED = {
    'gated': {'model.attention': f'gated({QK_NORM})'},
    'sink': {'model.attention': f'sink({QK_NORM})'},
    'differential V1': {'model.attention': f'differential(lambda_rate=0.1, {QK_NORM})'},
    'forgetting': {
        'model.decoder.attention': f'forgetting({QK_NORM})',
        'model.decoder.positions': 'none',
    },
}
# These fields are free in the combination. nGPT needs another RMSNorm.
OTHERS = (
    'value residual',
    'hyper-connections',
    'mHC',
    'transparent',
    'layer-wise',
    'nGPT',
    'multi-token',
)


def get_config() -> dict:
    combination = modern.PARTS[modern.COMBINATION]
    added = ADDED | {part: modern.PARTS[part] for part in OTHERS}
    arms = {'combination': combination}
    arms |= {part: combination | fields for part, fields in added.items()}
    return modern.get_config() | dict(
        question=(
            'Which components help a model with RMSNorm, SwiGLU, rotary and QK norm?'
        ),
        arms=arms,
        tune=modern.get_config()['tune'] | dict(values=RATES),
        base='combination',
        departures=modern.departures(added),
        contrasts=[(part, 'combination') for part in added],
    )
