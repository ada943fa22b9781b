"""Performance of one GPU compared with its limits.

    python -m benchmarks.gpu
    python -m benchmarks.gpu --work=steps --trace=/tmp/trace

`steps` times training steps of `wmt_big_bf16` on packed rows of random tokens.
`attention` times one layer's attention forward and backward. `of products` is the rate
relative to a large bfloat16 product on this GPU.
"""

import argparse
import contextlib
import functools
import importlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.command_line import console
from experiments.runtime import compilation

LARGE = 8192  # rows and columns of the product
COPIED = 1 << 28  # elements of the copy
# Config, attention, rows, length.
STEPS = [
    ('wmt_big_bf16', 'softmax', 96, 256),
    ('wmt_big_bf16', 'flash', 96, 256),
    ('wmt_big_bf16', 'flash', 192, 256),
]
# Rows and length, with the same number of tokens.
SHAPES = [(96, 256), (24, 1024), (6, 4096)]
KINDS = ('softmax', 'blockwise', 'flash')
HEADS, D_K = 16, 64
PAIRS = 8  # pairs of a source and a target in a row
QUEUED = 20  # calls timed together


def main() -> None:
    works = {'steps': steps, 'attention': attention}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--work', choices=works, help='one of them; else all')
    parser.add_argument('--trace', type=Path, help='a folder for profiles of the steps')
    args = parser.parse_args()
    rate = product_rate()
    print(f'{jax.devices()[0].device_kind}: products of bfloat16 at ', end='')
    print(f'{rate / 1e12:.0f} TFLOP/s, copies at {copy_rate() / 1e12:.2f} TB/s')
    for name in [args.work] if args.work else works:
        rows = []
        for row in works[name](rate, args.trace):
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
        print(console.table(list(rows[0]), [list(row.values()) for row in rows]))


def product_rate() -> float:
    x = random_normal((LARGE, LARGE))
    return 2 * LARGE**3 / seconds(jax.jit(jnp.matmul), x, x)


def copy_rate() -> float:
    x = jnp.ones(COPIED)
    return 2 * x.nbytes / seconds(jax.jit(lambda x: x + 1), x)


def seconds(call: Callable[..., Any], *arrays: Any) -> float:
    """Returns the time per call of queued calls; the first call compiles."""
    jax.block_until_ready(call(*arrays))
    began = time.perf_counter()
    for _ in range(QUEUED):
        result = call(*arrays)
    jax.block_until_ready(result)
    return (time.perf_counter() - began) / QUEUED


def steps(rate: float, trace: Path | None) -> Iterator[dict[str, Any]]:
    """Times training steps, and shows first losses, equal for equivalent attentions."""
    for name, kind, rows, length in STEPS:
        jitted, state, batch, key, flops = step(name, kind, rows, length)
        began = time.perf_counter()
        program = compilation.compile_program(jitted, state, batch, key)
        compiling = time.perf_counter() - began
        losses = []
        for _ in range(3):
            state, metrics = program(state, batch, key)
            losses.append(float(metrics.sums.loss / metrics.sums.tokens))
        with profile(trace and trace / f'{name}-{kind}', program):
            began = time.perf_counter()
            for _ in range(QUEUED):
                state, metrics = program(state, batch, key)
            jax.block_until_ready(metrics)
            took = (time.perf_counter() - began) / QUEUED
        memory = jax.devices()[0].memory_stats() or {}
        yield {
            'config': name,
            'attention': kind,
            'rows × length': f'{rows} × {length}',
            'ms': 1000 * took,
            'tokens/s': rows * length / took,
            'of products': f'{flops / took / rate:.2f}',
            'compile s': compiling,
            'peak GB so far': memory.get('peak_bytes_in_use', 0) / 1e9,
            'first losses': ' '.join(f'{loss:.4f}' for loss in losses),
        }


def profile(folder: Path | None, program: Any) -> contextlib.AbstractContextManager:
    """Writes a trace of the block, and the program that defines its names."""
    if not folder:
        return contextlib.nullcontext()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'program.hlo').write_text(program.as_text())
    return jax.profiler.trace(folder)


def step(
    name: str, kind: str, rows: int, length: int, pairs: int = PAIRS
) -> tuple[Any, ...]:
    """Returns the runner's training step, its state, a batch, a key, and its FLOPs."""
    from experiments.config import components, load
    from experiments.costs.ledger import ledger
    from flaxformer_lite.training.train_step import init_state, make_train_step

    file = importlib.import_module(f'configs.{name}').get_config()
    load.fill(file)
    file.model.attention = kind
    file.batch.tokens, file.batch.max_length = rows * length, length
    config = load.from_config_dict(file)
    parts = components.build(config)
    model = parts.model
    update, _ = parts.optimizer.build(model)
    state = jax.jit(functools.partial(init_state, model, update))(jax.random.key(0))
    made = make_train_step(model, update, loss=config.train.loss)
    vocab_size = state.params['embedding'].shape[0]
    batch = random_batch(rows, length, vocab_size, pairs)
    file.model.attention = 'softmax'  # the attention whose products are counted
    flops = ledger(load.from_config_dict(file))['flops']['batch']
    return jax.jit(made, donate_argnums=0), state, batch, jax.random.key(1), flops


def random_batch(
    rows: int, length: int, vocab_size: int, pairs: int = PAIRS
) -> dict[str, jax.Array]:
    shape = rows, length
    rng = np.random.default_rng(0)
    source, labels = rng.integers(4, vocab_size, (2, *shape), np.int32)
    pair, position = np.divmod(np.arange(length, dtype=np.int32), length // pairs)
    segments, positions = (np.broadcast_to(x, shape) for x in (pair + 1, position))
    inputs = np.where(positions == 0, 2, np.roll(labels, 1, 1)).astype(np.int32)
    return jax.device_put(
        {
            'source': source,
            'source_segments': segments,
            'source_positions': positions,
            'inputs': inputs,
            'labels': labels,
            'target_segments': segments,
            'target_positions': positions,
        }
    )


def attention(rate: float, trace: Path | None) -> Iterator[dict[str, Any]]:
    from flaxformer_lite.config import variants
    from flaxformer_lite.kv_cache import KeyValues
    from flaxformer_lite.masks import TokenBatch

    def both(kind, tokens, g_BTHK, *arrays):
        def forward(q_BTHK, key_BGKS, value_BGKS):
            return variants.make('attention', kind).apply(
                {},
                q_BTHK,
                KeyValues(key_BGKS, value_BGKS, tokens.positions_BT),
                positions_BT=tokens.positions_BT,
                mask_BHTS=tokens.causal_mask(),
            )

        y_BTHK, gradients = jax.vjp(forward, *arrays)
        return y_BTHK, gradients(g_BTHK)

    for (rows, length), kind in itertools.product(SHAPES, KINDS):
        if kind == KINDS[0]:
            first = None
        batch = random_batch(rows, length, 1000)
        tokens = TokenBatch(
            batch['inputs'], batch['target_segments'], batch['target_positions']
        )
        g = random_normal((rows, length, HEADS, D_K), jnp.float32)
        q_BTHK = random_normal(g.shape)
        key_BGKS = random_normal((rows, HEADS, D_K, length))
        arrays = g, q_BTHK, key_BGKS, key_BGKS
        program = jax.jit(functools.partial(both, kind))
        took = seconds(program, tokens, *arrays)
        memory = program.lower(tokens, *arrays).compile().memory_analysis()
        found = jax.tree.leaves(program(tokens, *arrays))
        first = first or found
        errors = [difference(x, y) for x, y in zip(found, first, strict=True)]
        yield {
            'rows × length': f'{rows} × {length}',
            'attention': kind,
            'ms': 1000 * took,
            'temporary MB': memory.temp_size_in_bytes / 1e6 if memory else None,
            'difference': f'{max(errors):.1e}',
        }


def random_normal(shape: tuple[int, ...], dtype: Any = jnp.bfloat16) -> jax.Array:
    return jax.random.normal(jax.random.key(0), shape, dtype)


def difference(x: jax.Array, y: jax.Array) -> float:
    """Returns ‖x − y‖ / ‖y‖."""
    x, y = (array.astype(jnp.float32) for array in (x, y))
    return float(jnp.linalg.norm(x - y) / jnp.linalg.norm(y))


if __name__ == '__main__':
    main()
