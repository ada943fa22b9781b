"""Figures and a table of what `heads` found; without JAX."""

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

from scipy import stats

from experiments.reports import statistics as spreads
from experiments.reports.display.charts import Chart, Heatmap, Heatmaps, Line
from experiments.reports.display.tables import Table

if TYPE_CHECKING:
    from experiments.reports.inside.gradients import FirstGradients
    from experiments.reports.inside.heads import Attended, Inspection

KINDS = {
    'encoder': 'encoder self-attention',
    'decoder': 'decoder self-attention',
    'decoder cross': 'attention to the source',
}
_MEANINGS = {
    'entropy': 'entropy of the weights, nats',
    'distance': 'mean distance, tokens',
    'largest': 'largest weight',
    'diagonal': 'weight of the own position',
    'previous': 'weight of the position before',
}


def note(kinds: Sequence[str]) -> str:
    """Says which attentions do not hold their weights; '' of none."""
    if not kinds:
        return ''
    names = ', '.join(KINDS[kind] for kind in kinds)
    return f'the weights of {names} cannot be shown, for it never holds them'


def weights(sentence: 'Attended', number: int) -> list[Heatmaps]:
    """A figure for each attention: all heads, a row a layer."""
    figures = []
    for kind in _in_order(sentence.weights):
        layers = sentence.weights[kind]
        maps = []
        for layer, heads in enumerate(layers):
            row = [
                Heatmap(
                    f'layer {layer}, head {head}',
                    sentence.queries[kind],
                    sentence.keys[kind],
                    # All that colours can show; more makes pages large.
                    [[round(x, 3) for x in line] for line in values],
                )
                for head, values in enumerate(heads)
            ]
            maps.append(tuple(row))
        name = f'attention_{number}_{kind.replace(" ", "_")}'
        figures.append(
            Heatmaps(name, KINDS[kind], 'to', 'from', tuple(maps), one_at_a_time=True)
        )
    return figures


def statistics(found: 'Inspection') -> list[Heatmaps]:
    """A figure for each statistic, an attention beside the other."""
    figures = []
    for name, meaning in _MEANINGS.items():
        maps = [
            _by_layer_and_head(KINDS[kind], found.stats[kind][name])
            for kind in _in_order(found.stats)
        ]
        if maps:
            title = f'Heads: {meaning}'
            figures.append(
                Heatmaps(f'heads_{name}', title, 'head', 'layer', (tuple(maps),))
            )
    return figures


def importance(found: 'Inspection') -> Heatmaps | None:
    """What each head is worth, measured above and estimated below."""
    rows = []
    for words, grids in (
        ('measured', found.importance.measured),
        ('first order', found.importance.estimated),
    ):
        rows.append(
            tuple(
                _by_layer_and_head(f'{KINDS[kind]}, {words}', grid)
                for kind, grid in grids.items()
            )
        )
    if not rows[0]:
        return None
    note = (
        f'By how much the loss of a token, {found.loss:.4f} nats over {found.pairs} '
        'sentences, rises where a head is switched off; below, what the gradient at '
        f'the whole model says of it. {agreement(found)}'
    )
    title = 'Importance of heads: rise of the loss'
    return Heatmaps(
        'heads_importance', title, 'head', 'layer', tuple(rows), True, False, note
    )


def agreement(found: 'Inspection') -> str:
    """How alike the two rank the heads, in a sentence; '' of fewer than three."""
    measured = _flat(found.importance.measured)
    estimated = _flat(found.importance.estimated)
    if len(measured) < 3 or len(set(measured)) == 1 or len(set(estimated)) == 1:
        return ''
    result: Any = stats.spearmanr(measured, estimated)
    return (
        f"Spearman's rank correlation of the two over {len(measured)} heads is "
        f'{result.statistic:.2f}.'
    )


def _in_order(kinds: Container[str]) -> list[str]:
    """The encoder's attention first, as a text goes through the model."""
    return [kind for kind in KINDS if kind in kinds]


def _flat(grids: dict[str, list[list[float]]]) -> list[float]:
    return [value for grid in grids.values() for row in grid for value in row]


def _by_layer_and_head(title: str, grid: Sequence[Sequence[float]]) -> Heatmap:
    rows = [str(layer) for layer in range(len(grid))]
    columns = [str(head) for head in range(len(grid[0]))]
    return Heatmap(title, rows, columns, grid)


def table(found: 'Inspection') -> Table:
    """Every head with all that is known of it."""
    rows: list[tuple[Any, ...]] = []
    for kind, measured in found.importance.measured.items():
        for layer, rises in enumerate(measured):
            for head, rise in enumerate(rises):
                grids = found.stats.get(kind, {})
                values = [
                    grids[x][layer][head] if x in grids else None for x in _MEANINGS
                ]
                estimate = found.importance.estimated[kind][layer][head]
                rows.append((KINDS[kind], layer, head, rise, estimate, *values))
    rows.sort(key=lambda row: -row[3])
    names = ('attention', 'layer', 'head', 'rise of loss', 'first order', *_MEANINGS)
    title = 'Heads, the most important first'
    return Table('heads', title, names, tuple(rows))


def first_gradients(found: Sequence['FirstGradients']) -> list[Chart]:
    """A figure for each stack: the norm of the first gradient, layer by layer."""
    charts = []
    for stack in _stacks(found):
        lines = []
        for arm in found:
            seeds = arm.norms.get(stack)
            if seeds is None:
                continue
            layers = list(zip(*seeds, strict=True))
            means = [sum(layer) / len(layer) for layer in layers]
            numbers = list(range(1, len(means) + 1))
            low, high = list(map(min, layers)), list(map(max, layers))
            lines.append(Line(arm.arm, numbers, means, low, high))
        title = f'norm of the first gradient, {stack}'
        charts.append(
            Chart(f'first_gradients_{stack}', title, 'layer', 'norm', tuple(lines))
        )
    return charts


def last_gradients(found: Sequence['FirstGradients']) -> Table:
    """The norms of the first and of the last layer of each stack, by arm."""
    stacks = _stacks(found)
    names = ['arm']
    for stack in stacks:
        names += [f'{stack} layers', f'{stack} first', f'{stack} last']
    rows = []
    for arm in found:
        row: list[Any] = [arm.arm]
        for stack in stacks:
            seeds = arm.norms.get(stack)
            if seeds is None:
                row += [None, None, None]
                continue
            row.append(len(seeds[0]))
            for layer in (0, -1):
                row.append(spreads.spread([norms[layer] for norms in seeds]))
        rows.append(tuple(row))
    title = 'Norm of the first gradient'
    note = 'Of the first and of the last layer: mean ± standard deviation over seeds.'
    return Table('first_gradients', title, tuple(names), tuple(rows), note=note)


def _stacks(found: Sequence['FirstGradients']) -> list[str]:
    """The decoder's first, which the paper's theorem is about."""
    return sorted({stack for arm in found for stack in arm.norms})
