"""Training and decoding on one core, compared with the machine's limits.

    python -m benchmarks.limit
    python -m benchmarks.limit --workdir=runs/wmt_small

Prefix each command with `taskset -c 0` to use one core. The first measures training
steps of `wmt_small` in several widths. The second measures a trained run's translations
of a set, next to CTranslate2's if installed. All times are processor time.

`products` is the time of the matrix products at the best rate of a large product.
`bytes` is the time of necessary memory traffic at the rate of a large copy. Both
exclude padding and discarded results. `of limit` is the larger of the two relative to
the measured time.
"""

import argparse
import importlib.util
import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import turns
from benchmarks.turns import Side
from experiments.command_line import console
from experiments.command_line.screen import Screen
from experiments.runtime import memory

WIDTHS = (128, 256, 512)
DTYPES = ('float32', 'bfloat16')
BEAMS = (1, 4)
LARGE = (512, 1024, 2048)  # rows and columns of a product at its best rate
COPIED = 1 << 28  # bytes
NO_RUN = Path('nowhere')
WARM_UP = 3  # untimed steps
STEPS = 10
HEAD = ['work', 'products ms', 'bytes ms', 'took ms', 'of limit']


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--workdir', type=Path, help='of a trained run, to decode with')
    parser.add_argument('--set', default='test', help='evaluation set of its data')
    parser.add_argument('--rounds', type=int, default=3, help='of decoding')
    args = parser.parse_args()
    if not args.workdir:
        memory.use_huge_pages()  # as the runner does, but not `translate`
    rates = {dtype: product_rate(dtype) for dtype in DTYPES}
    for dtype, rate in rates.items():
        print(f'products of {dtype}: {rate / 1e9:.0f} GFLOP/s', file=sys.stderr)
    bandwidth = copy_rate()
    print(f'memory: {bandwidth / 1e9:.1f} GB/s', file=sys.stderr)
    rows = []
    if args.workdir:
        for beams in BEAMS:
            rows += decoding(args, beams, rates, bandwidth)
    else:
        for width, dtype in itertools.product(WIDTHS, DTYPES):
            rows.append(training(width, dtype, rates[dtype], bandwidth))
    print(console.table(HEAD, rows))


def row(work: str, products: float, moved: float, took: float) -> list[Any]:
    """Returns a line of the table, from seconds."""
    share = max(products, moved) / took
    return [work, *(1000 * x for x in (products, moved, took)), f'{share:.2f}']


def product_rate(dtype: str) -> float:
    """Returns the highest FLOPs per second of large products."""
    rates = []
    for size in LARGE:
        x = jnp.ones((size, size), dtype)
        product = jax.jit(lambda x: jnp.dot(x, x, preferred_element_type=jnp.float32))
        seconds = fastest(lambda product=product, x=x: product(x))
        rates.append(2 * size**3 / seconds)
    return max(rates)


def copy_rate() -> float:
    """Returns bytes read and written per second, for an array larger than any cache."""
    x = jnp.ones(COPIED // 4)
    add_one = jax.jit(lambda x: x + 1)
    return 2 * COPIED / fastest(lambda: add_one(x))


def fastest(call: Callable[[], Any], times: int = 8) -> float:
    """Returns processor seconds of the fastest call; the first call compiles."""
    jax.block_until_ready(call())
    seconds = []
    for _ in range(times):
        began = time.process_time()
        jax.block_until_ready(call())
        seconds.append(time.process_time() - began)
    return min(seconds)


def training(width: int, dtype: str, rate: float, bandwidth: float) -> list[Any]:
    """Measures a step of `wmt_small` in a width, with the runner's components."""
    from configs import wmt_small
    from experiments.config import load
    from experiments.costs.ledger import ledger
    from experiments.data.batches import Position
    from experiments.runtime import compilation, mesh
    from experiments.training import setup
    from flaxformer_lite.training.train_step import init_state, make_train_step

    file = wmt_small.get_config()
    sizes = {'d_model': width, 'd_ff': 4 * width, 'dtype': dtype}
    load.fill(file)
    file.update_from_flattened_dict({f'model.{k}': v for k, v in sizes.items()})
    config = load.from_config_dict(file)
    made = setup.prepare(config, NO_RUN, Screen(sys.stderr))
    optimizer = made.programs.optimizer
    state = init_state(made.model, optimizer, jax.random.key(0))
    key = jax.random.key(1)
    step = jax.jit(make_train_step(made.model, optimizer), donate_argnums=0)
    planned = itertools.islice(made.batches.iterate(Position()), WARM_UP + STEPS)
    batches = [jax.device_put(batch, mesh.make_mesh().rows()) for batch, _ in planned]
    program = compilation.compiled(step, state, batches[0], key)
    seconds = []
    for batch in batches:
        began = time.process_time()
        state, metrics = program(state, batch, key)
        jax.block_until_ready((state, metrics))
        seconds.append(time.process_time() - began)
    took = median(seconds[WARM_UP:])
    costs = ledger(config)
    # Each of these arrays is read and written once.
    moved = 2 * sum(costs['bytes'].values())
    products = costs['flops']['batch'] / rate
    return row(f'step, d {width}, {dtype}', products, moved / bandwidth, took)


def decoding(
    args: argparse.Namespace, beams: int, rates: dict[str, float], bandwidth: float
) -> list[list[Any]]:
    """Measures translations of a run's set, here and in CTranslate2, text to text."""
    from benchmarks import exported
    from experiments.evaluation.opened_run import OpenedRun

    run = OpenedRun(args.workdir)
    texts = [source for source, _ in exported.pairs(args)]
    lengths = [len(ids) + 1 for ids in run.tokenizer.encode(texts)]
    # Translations have about as many tokens as their sources.
    encoding, step = decoding_flops(run, max(1, sum(lengths) // len(lengths)), beams)
    flops = len(texts) * encoding + sum(lengths) * step
    dtype = run.config.model.dtype
    parameters = sum(x.nbytes for x in jax.tree.leaves(run.variables['params']))
    batches = sum(lengths) * beams / run.config.evaluation.batch_tokens
    steps = 1 + batches * sum(lengths) / len(lengths)
    moved = parameters * steps
    rows = []
    for name, seconds in times(args, beams, len(texts)).items():
        work = f'{"greedy" if beams == 1 else f"beam {beams}"}, {name}'
        rows.append(row(work, flops / rates[dtype], moved / bandwidth, seconds))
    return rows


def decoding_flops(run: Any, length: int, beams: int) -> tuple[int, int]:
    """Returns FLOPs of encoding a sentence, and of one decoding step of its beams.

    The step is half way through a translation as long as the source.
    """
    from experiments.costs.flops import flops
    from flaxformer_lite.kv_cache import BeamState

    model, slots = run.model, max(1, length // 2)
    beam = BeamState(
        step=jnp.int32(0),
        parent_BN=jnp.zeros((1, beams), jnp.int32),
        visible_BNS=jnp.ones((1, beams, beams * slots), bool),
    )

    def encode(variables, source_BS):
        return model.apply(variables, source_BS, method='prefill')

    def encode_and_step(variables, source_BS):
        state = encode(variables, source_BS).allocate(beams, slots)
        token_BN = jnp.ones((1, beams), jnp.int32)
        return model.apply(variables, token_BN, state, beam, method='decode_step')

    source_BS = jnp.ones((1, length), jnp.int32)
    counts = [
        flops(jax.make_jaxpr(function)(run.variables, source_BS).jaxpr).total()
        for function in (encode, encode_and_step)
    ]
    return counts[0], counts[1] - counts[0]


def times(args: argparse.Namespace, beams: int, texts: int) -> dict[str, float]:
    """Returns the median processor seconds of each side's translations."""
    from benchmarks import exported

    # A side's process also gets this process's arguments.
    with tempfile.TemporaryDirectory() as folder:
        common = f'--share={folder}', f'--beams={beams}'
        sides = [Side('ours', (*common, '--worker=ours'))]
        if importlib.util.find_spec('ctranslate2'):
            turns.run(exported.MODULE, Side('', (*common, '--worker=export')))
            theirs = '--worker=theirs', '--quantization=float32'
            sides.append(Side('CTranslate2', (*common, *theirs)))
        results = turns.take(exported.MODULE, sides, args.rounds)
    return {
        name: texts / median(result['sentences/CPU s'] for result in found)
        for name, found in results.items()
    }


if __name__ == '__main__':
    main()
