"""What a sweep will cost: parameters, FLOPs and time of each run, before any begins."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.command_line import console
from experiments.config.schema import ExperimentConfig
from experiments.costs.ledger import ledger
from experiments.sweeps import outcome
from experiments.sweeps.schema import Cell

# FLOPs a second of a training step as a share of those of its largest product alone, as
# wmt_tiny and wmt_small have them on 2 cores.
SHARE = 0.4
BESIDE_TRAINING = 10.0  # seconds of a run: to begin, to evaluate and to score
_MEASURED = 0.3  # seconds of products


class Cost(NamedTuple):
    """What a run costs.

    Attributes:
      parameters: how many.
      flops: of the products of all training steps.
      seconds: of the whole run, estimated.
    """

    parameters: int
    flops: float
    seconds: float


def costs(cells: Sequence[Cell]) -> tuple[dict[Path, Cost], str]:
    """The cost of each run by its directory, and in words how time was estimated.

    An arm of which a run has finished takes as long again. For the others, steps have
    the mean rate of FLOPs of the arms that have; where none has, a share of the rate of
    the product d_model × d_ff, which is measured.

    Raises:
      UserError: a field that cannot be worked with.
    """
    books = {}
    seconds = {}
    for cell in cells:
        if cell.arm not in books:
            books[cell.arm] = ledger(cell.config)
        known = outcome.seconds_a_step(cell.path)
        if known is not None:
            seconds.setdefault(cell.arm, []).append(known)
    known = {arm: fmean(values) for arm, values in seconds.items()}
    rate = _mean_rate(books, known)
    found = {}
    for cell in cells:
        flops = _flops_a_step(books[cell.arm])
        a_step = known.get(cell.arm)
        if a_step is None:
            a_step = flops / (rate or SHARE * product_rate(cell.config))
        steps = cell.config.train.steps
        parameters = books[cell.arm]['parameters']['total']
        total = steps * a_step + BESIDE_TRAINING
        found[cell.path] = Cost(parameters, steps * flops, total)
    return found, _how(len(known), len(books))


def _flops_a_step(book: Mapping[str, Mapping[str, int]]) -> int:
    return book['flops_per_token']['total'] * book['batch']['tokens']


def _mean_rate(
    books: Mapping[str, Mapping[str, Mapping[str, int]]], seconds: Mapping[str, float]
) -> float | None:
    """FLOPs a second of the arms whose steps have known times."""
    if not seconds:
        return None
    return fmean(_flops_a_step(books[arm]) / seconds[arm] for arm in seconds)


def _how(known: int, arms: int) -> str:
    beside = f'and {BESIDE_TRAINING:g} s a run for all else'
    if known == arms:
        return f'time: as finished runs of the same arm took, {beside}'
    if known:
        return (
            f'time: as finished runs took, of {known} of the {arms} arms their own, '
            f'{beside}'
        )
    return (
        f'time: steps at {SHARE:.0%} of the rate of a product of their size on this '
        f'machine, which was measured, {beside}'
    )


_RATES: dict[tuple[int, int, int, str], float] = {}


def product_rate(config: ExperimentConfig) -> float:
    """FLOPs a second of a batch's positions by d_model × d_ff, on this machine."""
    model = config.model
    shape = (config.batch.tokens, model.d_model, model.d_ff, model.dtype)
    if shape not in _RATES:
        _RATES[shape] = _measure(*shape)
    return _RATES[shape]


def _measure(rows: int, width: int, inner: int, dtype: str) -> float:
    x = jnp.ones((rows, width), dtype)
    weights = jnp.ones((width, inner), dtype)
    product = jax.jit(jnp.matmul).lower(x, weights).compile()
    product(x, weights).block_until_ready()
    repeats = 0
    start = time.perf_counter()
    while time.perf_counter() - start < _MEASURED:
        product(x, weights).block_until_ready()
        repeats += 1
    seconds = time.perf_counter() - start
    return 2 * rows * width * inner * repeats / seconds


def table(cells: Sequence[Cell], costs: Mapping[Path, Cost]) -> str:
    """A row for each run: what it is, what it costs, and where."""
    rows = []
    for cell in cells:
        parameters, flops, seconds = costs[cell.path]
        status = outcome.of(cell.path).status
        left = console.duration(seconds)
        row = [cell.arm, cell.seed, status, parameters, f'{flops:.2e}', left, cell.path]
        rows.append(row)
    names = ['arm', 'seed', 'status', 'parameters', 'FLOPs', 'time', 'directory']
    return console.table(names, rows)


def seconds_left(cells: Sequence[Cell], costs: Mapping[Path, Cost]) -> float:
    """The estimated time of all runs that are not finished, one after another."""
    left = 0.0
    for cell in cells:
        if outcome.of(cell.path).status != outcome.FINISHED:
            left += costs[cell.path].seconds
    return left
