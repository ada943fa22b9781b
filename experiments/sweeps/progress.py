"""Output of a sweep: its plan, the runs that ended, and their scores."""

import collections
import itertools
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from experiments.command_line import console
from experiments.runs import reading
from experiments.sweeps import planning
from experiments.sweeps.schema import PlannedRun, Sweep

_SIMILAR_RATIO = 4.0  # maximum ratio between the FLOPs of similar steps
_SQUARE = 512  # size of the matrix product that estimates the speed


def heading(sweep: Sweep) -> str:
    arms = len(sweep.arms)
    most = 'at most ' if sweep.until else ''
    product = f'{console.count_noun(arms, "arm")} × {seeds(sweep)}'
    runs = f'{most}{_number_reported(sweep)} ({product})'
    if sweep.tune is not None:
        trials = len(sweep.trials) // arms
        tried = console.count_noun(trials, 'trial')
        runs = f'{runs}, after {tried} of {sweep.tune.field} per arm'
    # Only planned runs know whether higher scores are better.
    measure = sweep.all_runs[0].measure
    decides = f'{sweep.measure}, {measure.direction}'
    if sweep.further:
        decides += f'; also {", ".join(map(str, sweep.further))}'
    return console.facts(
        {
            'sweep': sweep.name,
            'question': sweep.question,
            'source': sweep.source,
            'runs': runs,
            'base': sweep.base,
            'measure': decides,
            **({'looks': _looks(sweep)} if sweep.earlier_looks else {}),
            **({'margin': sweep.margin_text} if sweep.margin_text else {}),
        }
    )


def seeds(sweep: Sweep) -> str:
    """Formats the number of seeds, such as `3 seeds, 12 of the base`."""
    text = console.count_noun(len(sweep.seeds), 'seed')
    if sweep.base_seeds:
        bases = [
            arm for arm in sweep.arms if len(sweep.seeds_of(arm)) > len(sweep.seeds)
        ]
        whose = 'the base' if len(bases) == 1 else f'each of {len(bases)} bases'
        text += f', {len(sweep.base_seeds)} of {whose}'
    return text


def _looks(sweep: Sweep) -> str:
    reports = console.count_noun(sweep.earlier_looks, 'report')
    return f'{sweep.looks}, because {reports} analyzed fewer seeds'


class Costs(NamedTuple):
    """The costs of a run.

    Attributes:
      parameters: None if only the FLOPs are estimated, from those of the base.
      flops, batch: FLOPs of the training, and of a step.
    """

    parameters: int | None
    flops: float
    batch: float


def plan(sweep: Sweep, is_exact: bool = False) -> str:
    """Formats the runs and costs of each arm, and the total of unfinished runs.

    The total includes runs after tuning.

    Args:
      is_exact: Whether to count the costs of every arm, which takes about a second
        each. Otherwise all arms have the base's FLOPs per token.
    """
    of_run = _exact_costs(sweep) if is_exact else _costs_of_base(sweep)
    by_arm = collections.defaultdict(list)
    for run in sweep.all_runs:
        by_arm[run.arm].append((run, of_run(run)))
    spent = []
    for run, costs in itertools.chain(*by_arm.values()):
        seconds = planning.result(run).get('train_seconds')
        if seconds is not None:
            spent.append(Work(costs.flops, costs.batch, seconds))
    remaining = []
    rows = []
    for arm, runs in by_arm.items():
        of_arm = _left(sweep, arm, runs)
        remaining += of_arm
        rows.append(
            [arm, *_counts(sweep, arm), *_cost_cells(runs), _hours(of_arm, spent)]
        )
    columns = ['trials', 'runs'] if sweep.tune else ['runs']
    names = ['arm', *columns, 'parameters', 'FLOPs per run', 'hours left']
    lines = [console.table(names, rows)]
    unplanned = number_of_runs(sweep) - len(sweep.all_runs)
    if sweep.tune is not None and unplanned > 0:
        lines.append(
            f'{console.count_noun(unplanned, "run")} with the tuned values follow'
        )
    if not is_exact and len(sweep.arms) > 1:
        lines.append(
            f'FLOPs of all arms are estimated from {sweep.base}, by training tokens. '
            '--costs counts those of each arm.'
        )
    lines.append(total_cost(remaining, spent, sweep.all_runs[0].config.model.dtype))
    return '\n'.join(lines)


def _counts(sweep: Sweep, arm: str) -> list[str]:
    """Returns the numbers of ended and planned runs, first of trials if any."""

    def ended(runs):
        return sum(run.arm == arm and planning.has_ended(run) for run in runs)

    counts = []
    if sweep.tune is not None:
        trials = len(sweep.trials) // len(sweep.arms)
        counts.append(f'{ended(sweep.trials)}/{trials}')
    return [*counts, f'{ended(sweep.runs)}/{len(sweep.seeds_of(arm))}']


def _cost_cells(runs: Sequence[tuple[PlannedRun, Costs]]) -> list[Any]:
    """Returns cells of parameters and FLOPs per run; a range if they differ."""
    of_runs = [costs for _, costs in runs]
    parameters = {costs.parameters for costs in of_runs}
    return [
        None if None in parameters else _range(parameters),
        _range({costs.flops for costs in of_runs}),
    ]


def _range(values: Collection[Any]) -> Any:
    least, most = min(values), max(values)
    if least == most:
        return least
    return f'{console.cell(least)} to {console.cell(most)}'


def _left(
    sweep: Sweep, arm: str, runs: Sequence[tuple[PlannedRun, Costs]]
) -> list['Work']:
    work = [
        Work(costs.flops, costs.batch)
        for run, costs in runs
        if not planning.has_ended(run)
    ]
    if not any(run.arm == arm for run in sweep.runs):  # its value is not chosen yet
        _, costs = runs[0]
        work += [Work(costs.flops, costs.batch)] * len(sweep.seeds_of(arm))
    return work


def _exact_costs(sweep: Sweep) -> Callable[[PlannedRun], Costs]:
    # The optimizer changes neither parameters nor FLOPs.
    tune = sweep.tune
    is_same_for_arm = tune is None or tune.field.startswith('optimizer.')
    known = {}

    def of_run(run: PlannedRun) -> Costs:
        key = run.arm if is_same_for_arm else run.title
        if key not in known:
            known[key] = _costs(run)
        return known[key]

    return of_run


def _costs_of_base(sweep: Sweep) -> Callable[[PlannedRun], Costs]:
    first = next((x for x in sweep.all_runs if x.arm == sweep.base), sweep.all_runs[0])
    of_base = _costs(first)
    tokens = first.config.batch.tokens

    def of_run(run: PlannedRun) -> Costs:
        if run.arm == first.arm:
            return of_base
        batch = of_base.batch * run.config.batch.tokens / tokens
        return Costs(None, batch * run.config.train.steps, batch)

    return of_run


def _costs(run: PlannedRun) -> Costs:
    from experiments.costs.ledger import ledger

    book = ledger(run.config)
    flops = book['flops']
    parameters = book['parameters']['total']
    return Costs(parameters, float(flops['training']), float(flops['batch']))


def number_of_runs(sweep: Sweep) -> int:
    """Returns the number of runs, planned or not; with `until`, the maximum."""
    if sweep.ended:
        return len(sweep.all_runs)
    return len(sweep.trials) + _number_reported(sweep)


def _number_reported(sweep: Sweep) -> int:
    return sum(len(sweep.seeds_of(arm)) for arm in sweep.arms)


class Work(NamedTuple):
    flops: float | None  # of the training
    batch: float | None  # FLOPs of a step
    seconds: float = 0.0  # of the training

    def is_similar(self, other: 'Work') -> bool:
        """Returns whether the steps have similar sizes, and so similar FLOP rates."""
        if not (self.flops and other.flops and self.batch and other.batch):
            return False
        return max(self.batch, other.batch) <= _SIMILAR_RATIO * min(
            self.batch, other.batch
        )


def _hours(remaining: Sequence[Work], spent: Sequence[Work]) -> float | None:
    """Returns the hours of the runs left; None without similar finished runs."""
    hours = 0.0
    for work in remaining:
        similar = [x for x in spent if work.is_similar(x)]
        if not similar:
            return None
        rate = fmean(x.seconds / x.flops for x in similar if x.flops)
        hours += (work.flops or 0.0) * rate / 3600
    return hours


def total_cost(
    remaining: Sequence[Work], spent: Sequence[Work], dtype: str | None = None
) -> str:
    """Formats the cost of the runs left: FLOPs, and hours if known.

    Args:
      dtype: That of a timed matrix product, without similar finished runs.
    """
    total = sum(work.flops or 0.0 for work in remaining)
    text = f'cost: {console.cell(float(total))} FLOPs'
    hours = _hours(remaining, spent)
    if hours:
        text += f', about {hours:.2g} worker hours (from similar runs)'
    elif hours is None and total and dtype is not None:
        text += f', {_format_min_hours(total, dtype)}'
    return text


def _format_min_hours(flops: float, dtype: str) -> str:
    if shutil.which('nvidia-smi'):
        return 'hours unknown until a similar run has ended'
    rate = _matmul_rate(dtype)
    return (
        f'at least {flops / rate / 3600:.2g} worker hours on this CPU: at '
        f'{rate / 1e9:.3g} GFLOP/s, the rate of one timed matrix product, which '
        'training does not reach'
    )


def _matmul_rate(dtype: str) -> float:
    """Returns the FLOPs per second of a product of two square matrices."""
    import jax
    import jax.numpy as jnp

    square = jnp.ones((_SQUARE, _SQUARE), dtype)
    product = jax.jit(jnp.matmul)
    product(square, square).block_until_ready()
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        product(square, square).block_until_ready()
        times.append(time.perf_counter() - begin)
    return 2 * _SQUARE**3 / min(times)


def say_ended(sweep: Sweep, reported: set[Path]) -> Sweep:
    """Prints a line for each run that has ended and is not in `reported`.

    Adds the runs to `reported`. Returns the sweep with the runs that the new results
    add.
    """
    new = [run for run in sweep.all_runs if run.path not in reported]
    ended = list(filter(planning.has_ended, new))
    if ended and sweep.tune is not None:
        sweep = planning.plan(sweep)
    number = str(number_of_runs(sweep))
    if sweep.until is not None and not sweep.ended:
        number = f'at most {number}'
    for run in ended:
        reported.add(run.path)
        print(f'[{len(reported)}/{number}] {run}: {_result_line(run)}', flush=True)
    return sweep


def _result_line(run: PlannedRun) -> str:
    status, message, result = planning.outcome(run)
    if status != reading.FINISHED:
        return f'{status}: {message}'
    score = console.score(planning.score(run), run.measure.decimals)
    time = console.duration(result['train_seconds'])
    return f'{run.measure} {score}, trained in {time}'


def summary(sweep: Sweep) -> str:
    rows = []
    for arm in sweep.arms:
        runs = [run for run in sweep.runs if run.arm == arm]
        counts = collections.Counter()
        for run in runs:
            counts[planning.outcome(run).status] += 1
        ends = [f'{count} {status}' for status, count in counts.items()]
        mean = _mean(map(planning.score, runs))
        rows.append([arm, ', '.join(ends), mean])
    measure = str(sweep.measure)
    decimals = {measure: sweep.measure.decimals}
    return console.table(['arm', 'runs', measure], rows, decimals)


def _mean(values: Iterable[Any]) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return fmean(known)
