"""Training next to Hugging Face Marian: target tokens per second, and peak memory.

    python -m benchmarks.training --data='text(path="…", source="en", target="de")'
        --d_model=256

Both train the same sizes with Adam, dropout and label smoothing, with about 4,096
target tokens per batch. Our side packs rows; Marian gets pairs of similar length.
"""

import argparse
import functools
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import turns
from benchmarks.turns import Side
from experiments.data import collate, corpus, sources, tokenizers
from experiments.data.batches import Batches, Position
from experiments.data.prefetch import prefetch
from experiments.runtime import memory

VOCABULARY = 8000
TOKENIZER = f'sentencepiece(vocab_size={VOCABULARY})'
TOKENS = 4096  # target positions per batch
MAX_LENGTH = 64  # tokens of a pair's longer side; longer pairs are left out
SIZES = dict(num_layers=4, num_heads=4, dropout=0.1)
SMOOTHING = 0.1
WARM_UP = 3  # untimed steps

# By default glibc returns large freed blocks to the system, and fresh pages cost time
# in each step. These settings make it use huge pages and keep freed blocks. The runner
# keeps them by `memory.keep_freed`.
TUNED = {
    'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=1',
    'MALLOC_TRIM_THRESHOLD_': str(1 << 40),
    'MALLOC_MMAP_THRESHOLD_': str(1 << 40),
}


def main() -> None:
    args = _arguments()
    if args.worker:
        print(json.dumps(ours(args) if args.worker == 'ours' else theirs(args)))
        return
    _prepare(args)
    results = turns.take('benchmarks.training', _sides(args.dtype), args.rounds)
    print(turns.table(results, 'tokens/s'))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cache = Path(tempfile.gettempdir()) / 'flaxformer_lite_benchmarks'
    parser.add_argument('--data', required=True, help='a data source, like config.data')
    parser.add_argument(
        '--d_model', type=int, default=128, help='d_ff is four times as wide'
    )
    parser.add_argument('--dtype', choices=('float32', 'bfloat16'), default='float32')
    parser.add_argument('--steps', type=int, default=20, help='timed in each round')
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument(
        '--cache', type=Path, default=cache, help='of tokens and programs'
    )
    parser.add_argument('--worker', help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ['FLAXFORMER_LITE_CACHE'] = str(args.cache)
    return args


def _sides(dtype: str) -> Iterator[Side]:
    casts = ['float32'] if dtype == 'float32' else ['autocast', 'weights']
    yield Side('flaxformer_lite', ('--worker=ours',))
    for cast in casts:
        yield Side(f'Marian {cast}', (f'--worker={cast}',))
        yield Side(f'Marian {cast}, tuned memory', (f'--worker={cast}',), TUNED)


def _prepare(args: argparse.Namespace) -> tuple[corpus.Corpus, int]:
    source = sources.load(args.data)
    words = tokenizers.train(tokenizers.make(TOKENIZER), source, args.cache)
    return corpus.prepare(source, words, args.cache), words.vocab_size


def ours(args: argparse.Namespace) -> dict[str, float]:
    memory.keep_freed()  # as every command does
    import jax

    import flaxformer_lite as fl
    from experiments.command_line.screen import Screen
    from experiments.runtime import compilation, mesh
    from experiments.training import setup
    from experiments.training.metrics import Progress
    from flaxformer_lite.training.train_step import init_state, make_train_step

    work = setup.prepare(_config(args), args.cache, Screen(sys.stderr))
    init = functools.partial(init_state, work.model, work.programs.update)
    state, key = jax.jit(init)(jax.random.key(0)), jax.random.key(1)
    loss = fl.losses.CrossEntropy(label_smoothing=SMOOTHING)
    step = make_train_step(work.model, work.programs.update, loss=loss)
    batches = prefetch(work.batches.iterate(Position()))
    first = jax.device_put(next(batches)[0], mesh.make_mesh().rows())
    began = time.perf_counter()
    program = compilation.compile_program(
        jax.jit(step, donate_argnums=0), state, first, key
    )
    compiling = time.perf_counter() - began
    for count in (WARM_UP, args.steps):
        figures = Progress(text='')
        for batch, after in itertools.islice(batches, count):
            state, metrics = program(
                state, jax.device_put(batch, mesh.make_mesh().rows()), key
            )
            figures.add(0, after, metrics)
        figures.settle()
    peak = turns.peak_megabytes()
    step_seconds = figures.seconds / args.steps
    return {
        'tokens/s': figures.tokens / figures.seconds,
        'peak MB': peak,
        'tokens a step': figures.tokens / args.steps,
        'compile s': compiling,
        'input % of step': 100 * _input_seconds(work.batches) / step_seconds,
    }


def _config(args: argparse.Namespace) -> Any:
    from configs import wmt_base
    from experiments.config import load

    config = wmt_base.get_config()
    config.data = args.data
    config.tokenizer = TOKENIZER
    config.batch.tokens, config.batch.max_length = TOKENS, MAX_LENGTH
    config.model.update(
        SIZES, d_model=args.d_model, d_ff=4 * args.d_model, dtype=args.dtype
    )
    return load.from_config_dict(config)


def _input_seconds(batches: Batches, count: int = 50) -> float:
    began = time.perf_counter()
    for _ in itertools.islice(batches.iterate(Position()), count):
        pass
    return (time.perf_counter() - began) / count


def theirs(args: argparse.Namespace) -> dict[str, float]:
    import torch

    from benchmarks import marian

    pairs, vocab_size = _prepare(args)
    model = marian.make(
        vocab_size, d_model=args.d_model, d_ff=4 * args.d_model, **SIZES
    ).train()
    if args.worker == 'weights':
        model = model.to(torch.bfloat16)
    adam = torch.optim.Adam(
        model.parameters(), 1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
    )

    def step(source, inputs, labels):
        with torch.autocast('cpu', torch.bfloat16, enabled=args.worker == 'autocast'):
            out = model(source, source != 0, decoder_input_ids=inputs, use_cache=False)
        loss = torch.nn.functional.cross_entropy(
            out.logits.flatten(0, 1),
            labels.flatten(),
            ignore_index=0,
            label_smoothing=SMOOTHING,
        )
        loss.backward()
        adam.step()
        adam.zero_grad(set_to_none=True)

    plan = itertools.islice(_of_like_length(pairs), WARM_UP + args.steps)
    batches = [tuple(torch.from_numpy(x).long() for x in batch) for batch in plan]
    for batch in batches[:WARM_UP]:
        step(*batch)
    began = time.perf_counter()
    for batch in batches[WARM_UP:]:
        step(*batch)
    seconds = time.perf_counter() - began
    tokens = sum(int((labels != 0).sum()) for _, _, labels in batches[WARM_UP:])
    return {
        'tokens/s': tokens / seconds,
        'peak MB': turns.peak_megabytes(),
        'tokens a step': tokens / args.steps,
    }


def _of_like_length(pairs: corpus.Corpus) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields batches padded to the longest row of each array, in random order."""
    lengths = np.stack([pairs.source.lengths(), pairs.target.lengths()], 1) + 1
    fits = np.flatnonzero(lengths.max(1) <= MAX_LENGTH)
    order = fits[np.lexsort((lengths[fits, 0], lengths[fits, 1]))]
    cuts, start = [], 0
    for end, longest in enumerate(lengths[order, 1]):
        if (end + 1 - start) * longest > TOKENS:
            cuts.append(end)
            start = end
    groups = np.split(order, cuts)
    for i in np.random.default_rng(0).permutation(len(groups)):
        source, target = lengths[groups[i]].max(0)
        shape = len(groups[i]), max(source, target)
        batch = collate.pairs_batch(pairs, shape, groups[i], np.arange(len(groups[i])))
        yield (
            batch['source'][:, :source],
            batch['inputs'][:, :target],
            batch['labels'][:, :target],
        )


if __name__ == '__main__':
    main()
