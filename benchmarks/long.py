"""Peak memory of attention over a long text, forward and backward, for each variant.

    python -m benchmarks.long --length=8192 --variants=softmax,blockwise

Each variant runs in its own process. Results and gradients are compared with those of
the first variant. Differences of gradients are relative to their largest entry.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import turns
from benchmarks.turns import Side

HEADS, WIDTH = 4, 64


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--length', type=int, default=8192, help='of queries and of keys'
    )
    parser.add_argument('--variants', default='softmax,blockwise')
    parser.add_argument('--worker', help=argparse.SUPPRESS)
    parser.add_argument('--share', type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(work(args)))
        return
    with tempfile.TemporaryDirectory() as share:
        # The first process only loads the library; the memory of the others is compared
        # with it.
        names = ['nothing', *args.variants.split(',')]
        sides = [Side(name, (f'--worker={name}', f'--share={share}')) for name in names]
        results = turns.take('benchmarks.long', sides, 1)
    base = results.pop('nothing')[0]['peak MB']
    for (row,) in results.values():
        row['above the library MB'] = row['peak MB'] - base
    print(turns.table(results, 'above the library MB'))


def work(args: argparse.Namespace) -> dict[str, float]:
    """Runs one variant forward and backward, causal, on one sentence."""
    import jax
    import jax.numpy as jnp

    from flaxformer_lite.config import variants
    from flaxformer_lite.kv_cache import KeyValues
    from flaxformer_lite.masks import TokenBatch

    if args.worker == 'nothing':
        jax.block_until_ready(jax.jit(jnp.square)(jnp.ones(8)))
        return {'peak MB': turns.peak_megabytes()}
    attention = variants.make('attention', args.worker)
    positions_BT = jnp.arange(args.length)[None]
    shapes = (1, args.length, HEADS, WIDTH), *[(1, HEADS, WIDTH, args.length)] * 2
    keys = jax.random.split(jax.random.key(0), len(shapes))
    arrays = [jax.random.normal(key, x) for key, x in zip(keys, shapes, strict=True)]

    @jax.jit
    def both(q_BTHK, key_BGKS, value_BGUS):
        def loss(*arrays):
            kv = KeyValues(*arrays[1:], positions_BT)
            tokens = TokenBatch.from_tokens(jnp.ones_like(positions_BT))
            y = attention.apply(
                {},
                arrays[0],
                kv,
                positions_BT=positions_BT,
                mask_BHTS=tokens.causal_mask(),
            )
            return jnp.square(y).sum(), y

        arrays = q_BTHK, key_BGKS, value_BGUS
        return jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(*arrays)

    program = both.lower(*arrays).compile()
    began = time.perf_counter()
    found = jax.block_until_ready(program(*arrays))
    result = {'seconds': time.perf_counter() - began, 'peak MB': turns.peak_megabytes()}
    file, values = (
        args.share / 'first.npz',
        [np.asarray(x) for x in jax.tree.leaves(found)],
    )
    if not file.exists():
        np.savez(file, *values)
    first = np.load(file)
    *gradients, y = [
        (np.abs(first[n] - x).max(), np.abs(x).max())
        for n, x in zip(first, values, strict=True)
    ]
    return result | {
        'difference': float(y[0]),
        'of gradients, relative': float(max(x / largest for x, largest in gradients)),
    }


if __name__ == '__main__':
    main()
