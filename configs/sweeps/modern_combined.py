"""The components of `modern`, each added to RMSNorm, SwiGLU, rotary and QK norm."""

from configs.sweeps import modern

# Twice those of `modern`, where the combination was best at the highest rate.
RATES = [2 * rate for rate in modern.RATES]
QK_NORM = 'query_key_norm=True'
ADDED = {
    'gated, per head': {'model.attention': f'gated(gates="heads", {QK_NORM})'},
    'gated, per element': {'model.attention': f'gated({QK_NORM})'},
    'sink': {'model.attention': f'sink({QK_NORM})'},
    'differential': {'model.attention': f'differential({QK_NORM})'},
    'forgetting': {'model.decoder.attention': f'forgetting({QK_NORM})'},
}
# These fields are free in the combination. nGPT needs another RMSNorm.
OTHERS = (
    'value residual',
    'hyper-connections',
    'mHC',
    'transparent',
    'layer-wise',
    'nGPT residual',
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
        contrasts=[(part, 'combination') for part in added],
    )
