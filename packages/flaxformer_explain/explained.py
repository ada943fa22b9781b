"""A page that explains how a run writes given translations."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import altair as alt
import jax
import jax.numpy as jnp
import numpy as np

from experiments.data.sources.base import Pair
from experiments.evaluation.opened_run import OpenedRun
from experiments.reports import page
from experiments.reports.figures import COLOURS, Figure
from experiments.reports.page import ReportSection
from experiments.reports.tables import Table
from flaxformer_explain import explanations, looking
from flaxformer_explain.attributions import METHODS, Attributor

_TEXT = (
    'The texts are references of the set, not translations by the run, which reads '
    'them as in training. A row is a word of the reference, and its weights of the '
    'source words sum to 1. The heat maps show attention, and how much the '
    'log-probability of the word owes to each source word:'
)

_NUMBERS = ('score', 'low', 'high', 'chance')


def html(
    run: OpenedRun,
    pairs: Sequence[Pair],
    on_progress: Callable[[int, int, str], None],
) -> str:
    """Returns a page with heat maps and the logit lens of each pair.

    Args:
      on_progress: Called with the number of explained pairs, their total, and 'pairs'.
    """
    sections = []
    for section in _sections(run, pairs):
        sections.append(section)
        on_progress(len(sections), len(pairs), 'pairs')
    methods = [f'{name}: {text}' for name, text in METHODS.items()]
    about = ReportSection('Methods', [_TEXT, *methods])
    return page.html(f'Explanations of {run.path}', [about, *sections])


def scores_figure(
    scores: Mapping[str, Sequence[Mapping[str, str]]], side: str = 'source'
) -> Figure:
    """Draws how often each method finds the right first word, by phenomenon.

    Dashed lines mark the expectation for random maps.

    Args:
      scores: Rows of `explanations.<set>.csv`, by the name of a model.
    """
    values = []
    for model, rows in scores.items():
        for row in rows:
            if (row['side'], row['metric']) == (side, 'p@1'):
                numbers = {name: float(row[name]) for name in _NUMBERS}
                values.append({**row, **numbers, 'model': model})
    models = alt.Scale(domain=list(scores), range=COLOURS)
    legend = alt.Legend(title=None, orient='bottom')
    base = alt.Chart().encode(
        y=alt.Y('method:N', sort=None, title=None, axis=alt.Axis(labelLimit=260)),
        yOffset=alt.YOffset('model:N', sort=None),
        color=alt.Color('model:N', scale=models, legend=legend),
    )
    title = ['First word right', '(bars: 95% CI over sentences)']
    chart = alt.layer(
        alt.Chart().mark_rule(strokeDash=[2, 2]).encode(x='mean(chance):Q'),
        base.mark_rule().encode(x=alt.X('low:Q', title=title), x2='high:Q'),
        base.mark_point(filled=True, size=25, opacity=1).encode(x='score:Q'),
        data=alt.InlineData(values=values),
        width=200,
        height=alt.Step(6, **{'for': 'offset'}),
    ).facet(alt.Facet('phenomenon:N', title=None), columns=3)
    return Figure('first_word', f'First word right, {side} words', chart)


def _sections(run: OpenedRun, pairs: Sequence[Pair]) -> Iterator[ReportSection]:
    attribute = Attributor(run)
    lens = jax.jit(_most_likely, static_argnames='model')
    for number, (source, target) in enumerate(pairs, 1):
        batch = run.batch([(source, target)])
        labels = batch['labels'][0].tolist()
        of_source, of_target = run.tokenizer.sides
        # The words of `word_of_piece`: a tokenizer may leave out unknown ones.
        read = of_source.decode(batch['source'].tolist())[0].split()
        written = of_target.decode([labels])[0].split()
        figures = []
        for method, maps in attribute((source, target)).items():
            weights_TS = maps.source / np.maximum(maps.source.sum(1), 1e-9)[:, None]
            chart = looking.weights_map(
                weights_TS, written, read, ('reference word', 'source word')
            )
            figures.append(Figure(f'{number} {method}', method, chart))
        found = jax.device_get(lens(run.model, run.variables, batch))
        table = _lens_table(run, labels, *found)
        yield ReportSection(target, [source], [table], figures)


def _most_likely(model, variables, batch) -> tuple[jax.Array, jax.Array]:
    p_LTV = jax.nn.softmax(explanations.logit_lens(model, variables, batch)[:, 0])
    return jnp.argmax(p_LTV, -1), jnp.max(p_LTV, -1)


def _lens_table(
    run: OpenedRun, labels: list[int], tokens_LT: np.ndarray, p_LT: np.ndarray
) -> Table:
    of_target = run.tokenizer.sides[1]
    columns = [of_target.pieces(labels)]
    for tokens_T, p_T in zip(tokens_LT, p_LT, strict=True):
        pieces = of_target.pieces(tokens_T.tolist())
        columns.append([f'{x} {p:.2f}' for x, p in zip(pieces, p_T, strict=True)])
    layers = [f'after layer {i}' for i in range(len(tokens_LT) - 1)]
    return Table(
        'logit_lens',
        'Logit lens',
        ['piece', 'before the layers', *layers],
        list(zip(*columns, strict=True)),
        note='The likeliest piece and its probability (nostalgebraist 2020).',
    )
