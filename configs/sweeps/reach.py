"""Do the effects of components hold for wider models and longer training?

Declared before any run:

- The effect of a component in a cell is log(its test loss / the base's), means over
  seeds. Negative is better.
- The trend is effect = a + b log₂ width + c log₂ steps, fitted by least squares to all
  cells but (128, 5,400).
- Its forecast for (128, 5,400) has a 90% prediction interval. The effect that is
  measured in this cell tests the forecast.
- A forecast is "not predictable" if its interval includes 0 and reaches further than
  the largest effect in the fitted cells.

Learning rates come from `reach_rates` at width 32, and μP transfers them to the other
widths. They are not tuned again for more steps.

Each arm costs some 80 minutes of a core, so there are only three, as in
`published_forms`. Gates are one, because their effect had changed its sign with more
steps.
"""

from configs.sweeps import published_forms

WIDTHS = (32, 64, 128)
STEPS = (600, 1800, 5400)
BASE_WIDTH = WIDTHS[0]
# The best of four rates in `reach_rates`, by the mean loss of two seeds on `val`.
RATES = {
    'base': 3.2e-2,
    'gated': 1.6e-2,
    'QK norm': 3.2e-2,
    published_forms.COMBINATION: 3.2e-2,
}
HELD_OUT = {'width': '128', 'steps': '5400'}


def arm_of(part: str, width: int, steps: int) -> str:
    return f'{part}, width {width}, {steps:,} steps'


def fields(part: str, width: int, steps: int) -> dict:
    return published_forms.parts(width)[part] | {
        'model.d_model': width,
        'model.d_ff': 4 * width,
        'optimizer.schedule': f'cosine(peak={RATES[part]}, warmup=0.15)',
        'train.steps': steps,
        'evaluation.every': steps,
        'checkpoint.every': steps,
    }


def get_config() -> dict:
    # The cheapest cells come first.
    cells = sorted(
        [(width, steps) for width in WIDTHS for steps in STEPS],
        key=lambda cell: cell[0] * cell[1],
    )
    of_forms = published_forms.get_config()
    return dict(
        question='Do effects of components hold for wider models and longer training?',
        source='Lourie et al. 2026 (arXiv 2608.11859), on forecasts of effects',
        config=of_forms['config'],
        overrides={
            'model.dtype': 'bfloat16',
            'model.init': f'mu_p(base={BASE_WIDTH})',
            'evaluation.decode': 'greedy',
        },
        arms={
            arm_of(part, *cell): fields(part, *cell) for cell in cells for part in RATES
        },
        levels={
            arm_of(part, width, steps): {
                'component': part,
                'width': str(width),
                'steps': str(steps),
            }
            for part in RATES
            for width, steps in cells
        },
        seeds=tuple(range(4)),
        base_seeds=tuple(range(8)),
        base=arm_of('base', *cells[0]),
        contrasts=[
            (arm_of(part, *cell), arm_of('base', *cell))
            for cell in cells
            for part in RATES
            if part != 'base'
        ],
        measure=['test loss', 'test bleu'],
        margin='5%',
        forecast=HELD_OUT,
        departures={
            arm_of(part, *cell): text
            for part, text in published_forms.DEPARTURES.items()
            if part in RATES
            for cell in cells
        },
        differs='Two layers on sentences of a grammar.',
    )
