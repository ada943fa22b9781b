"""A checkpoint of Transformers here and there: tokens per second, and peak memory.

    python -m benchmarks.families

Compares the logits of both sides on a random model of T5-small's size. The sides then
take turns on one batch, with equally many threads. Searches decode a fixed number of
tokens.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import family_models, turns
from benchmarks.training import TUNED
from benchmarks.turns import Side

MODULE = 'benchmarks.families'
BEAMS = 4
RATE = dict(learning_rate=1e-4, weight_decay=0.01)
WORKS = ('encoder', 'training', 'greedy', 'beam')
REPEATED = {'encoder': 8, 'training': 3, 'greedy': 2, 'beam': 1}
WARM_UP = 2  # untimed calls

Compute = Callable[[], Any]


def main() -> None:
    args = _arguments()
    if args.worker:
        print(json.dumps(ours(args) if args.worker == 'ours' else theirs(args)))
        return
    for family in args.families:
        with tempfile.TemporaryDirectory() as folder:
            # In another process, since a side's peak memory starts at this process's.
            make = [sys.executable, '-m', 'benchmarks.family_models', family, folder]
            subprocess.run(make, check=True)
            for work in args.works:
                results = turns.take(MODULE, _sides(args, work, folder), args.rounds)
                table = turns.table(results, 'tokens/s', 'tokens/CPU s')
                print(f'{family}: {work}\n{table}\n', flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--families',
        type=lambda text: text.split(','),
        default='t5',
        help=f'of {", ".join(family_models.FAMILIES)}',
    )
    parser.add_argument(
        '--works', type=lambda text: text.split(','), default=','.join(WORKS)
    )
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument(
        '--threads', type=int, default=os.cpu_count(), help='of each side'
    )
    parser.add_argument(
        '--tokens', type=int, default=32, help='that are decoded of each target'
    )
    parser.add_argument('--worker', help=argparse.SUPPRESS)
    parser.add_argument('--work', help=argparse.SUPPRESS)
    parser.add_argument('--share', type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _sides(args: argparse.Namespace, work: str, folder: str) -> list[Side]:
    threads = {'NPROC': str(args.threads), 'OMP_NUM_THREADS': str(args.threads)}
    names = {'ours': 'flaxformer_lite', 'theirs': 'Transformers'}
    share = f'--share={folder}'
    return [
        Side(name, (f'--worker={worker}', f'--work={work}', share), TUNED | threads)
        for worker, name in names.items()
    ]


def _timed(compute: Compute, work: str, tokens: int) -> dict[str, float]:
    for _ in range(WARM_UP):
        compute()
    count = REPEATED[work]
    began, processor = time.perf_counter(), time.process_time()
    for _ in range(count):
        compute()
    processor = time.process_time() - processor
    seconds = time.perf_counter() - began
    return {
        'tokens/s': count * tokens / seconds,
        'tokens/CPU s': count * tokens / processor,
        'peak MB': turns.peak_megabytes(),
    }


def _tokens(args: argparse.Namespace, batch: Any) -> int:
    if args.work in ('greedy', 'beam'):
        return family_models.SENTENCES * args.tokens
    tokens = batch['source' if args.work == 'encoder' else 'labels']
    return int((tokens != batch['padding']).sum())


def ours(args: argparse.Namespace) -> dict[str, float]:
    import flaxformer_checkpoints

    loaded = flaxformer_checkpoints.from_pretrained(
        args.share / family_models.CHECKPOINT
    )
    batch = np.load(args.share / family_models.BATCH)
    make = {'encoder': _our_encoder, 'training': _our_training}
    compute = make.get(args.work, _our_decoding)(args, *loaded, batch)
    return _timed(compute, args.work, _tokens(args, batch))


def _our_encoder(args, model, variables, batch) -> Compute:
    import jax

    encode = jax.jit(family_models.encode, static_argnums=0)
    return lambda: encode(model, variables, batch['source']).block_until_ready()


def _our_training(args, model, variables, batch) -> Compute:
    import jax
    import optax

    import flaxformer_lite

    optimizer = optax.adamw(**RATE)
    state = flaxformer_lite.TrainState.create(variables, optimizer)
    loss = flaxformer_lite.losses.CrossEntropy(label_smoothing=0.0)
    step = flaxformer_lite.make_train_step(model, optimizer, loss=loss)
    step = jax.jit(step, donate_argnums=0)
    trained = family_models.as_trained_on(batch)

    def compute():
        nonlocal state
        state, metrics = step(state, trained, jax.random.key(1))
        jax.block_until_ready((state, metrics))

    return compute


def _our_decoding(args, model, variables, batch) -> Compute:
    import flaxformer_lite

    strategy = flaxformer_lite.decoding.Greedy()
    if args.work == 'beam':
        strategy = flaxformer_lite.decoding.BeamSearch(beams=BEAMS)

    def compute():
        found = flaxformer_lite.generate(
            model,
            variables,
            batch['source'],
            strategy,
            max_length=args.tokens,
        )
        if (np.asarray(found.tokens)[..., :-1] == model.special_tokens.eos).any():
            raise SystemExit('a target has ended: give fewer --tokens')

    return compute


def theirs(args: argparse.Namespace) -> dict[str, float]:
    import torch
    from transformers import AutoModelForSeq2SeqLM

    torch.set_num_threads(args.threads)
    folder = args.share / family_models.CHECKPOINT
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    batch = np.load(args.share / family_models.BATCH)
    make = {'encoder': _their_encoder, 'training': _their_training}
    compute = make.get(args.work, _their_decoding)(
        args, model, family_models.as_tensors(batch)
    )
    return _timed(compute, args.work, _tokens(args, batch))


def _their_encoder(args, model, batch) -> Compute:
    import torch

    encoder = model.eval().get_encoder()

    @torch.inference_mode()
    def compute():
        encoder(batch['input_ids'], batch['attention_mask'])

    return compute


def _their_training(args, model, batch) -> Compute:
    import torch

    settings = dict(lr=RATE['learning_rate'], weight_decay=RATE['weight_decay'])
    optimizer = torch.optim.AdamW(model.train().parameters(), **settings, fused=True)

    def compute():
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return compute


def _their_decoding(args, model, batch) -> Compute:
    import torch

    model.eval().generation_config.eos_token_id = None

    @torch.inference_mode()
    def compute():
        tokens = model.generate(
            batch['input_ids'],
            attention_mask=batch['attention_mask'],
            max_new_tokens=args.tokens,
            num_beams=BEAMS if args.work == 'beam' else 1,
            do_sample=False,
        )
        if tokens.shape != (family_models.SENTENCES, 1 + args.tokens):
            raise SystemExit(f'other tokens than asked for: {tuple(tokens.shape)}')

    return compute


if __name__ == '__main__':
    main()
