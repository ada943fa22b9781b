"""The arms of `modern` at twice the width."""

from configs.sweeps import modern

WIDTH = 128


def get_config() -> dict:
    narrow = modern.get_config()
    sizes = {'model.d_model': WIDTH, 'model.d_ff': 4 * WIDTH}
    return narrow | dict(
        overrides=narrow['overrides'] | sizes,
        arms=modern.parts(WIDTH),
        differs=(
            f'Two layers of width {WIDTH} on sentences of a grammar, for 600 steps; '
            'most papers train language models of over 100 million parameters.'
        ),
    )
