"""At twice the width: the base, and nine arms of `modern` that differed from it."""

from configs.sweeps import modern

WIDTH = 128
# The best rate falls with the width. At 64, it was 3.2e-2 only for the combination.
RATES = [2e-3, 4e-3, 8e-3, 1.6e-2]
PARTS = (
    'base',
    'rotary',
    'SwiGLU',
    'QK norm',
    modern.COMBINATION,
    'nGPT',
    'hyper-connections',
    'sink',
    'gated, per element',
    'differential',
)


def get_config() -> dict:
    narrow = modern.get_config()
    sizes = {'model.d_model': WIDTH, 'model.d_ff': 4 * WIDTH}
    parts = modern.parts(WIDTH)
    return narrow | dict(
        question='Do components that matter at width 64 matter at width 128?',
        overrides=narrow['overrides'] | sizes,
        arms={part: parts[part] for part in PARTS},
        tune=narrow['tune'] | dict(values=RATES),
        contrasts=[(part, 'base') for part in PARTS if part != 'base'],
        differs=(
            f'Two layers of width {WIDTH} on sentences of a grammar, for 600 steps; '
            'most papers train language models of over 100 million parameters.'
        ),
    )
