"""A checkpoint of Transformers here and there: tokens a second, and the same logits.

    python -m benchmarks.families
    python -m benchmarks.families --parity

The first writes T5-small with random weights, has both sides read it, and compares
their logits before anything is timed. Then they take turns on one batch, each with as
many threads and with memory that glibc keeps: the encoder's forward pass; a training
step with dropout and AdamW; greedy and beam search with a cache, of so many tokens that
no target ends before. The second compares the small checkpoints of the tests.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import turns
from benchmarks.training import TUNED
from benchmarks.turns import Side
from experiments.command_line import console

MODULE = 'benchmarks.families'
GOLDENS = Path('tests/goldens/families')
SENTENCES, LENGTH = 8, 64  # of which source and target have a half to the whole
BEAMS = 4
RATE = dict(learning_rate=1e-4, weight_decay=0.01)
WORKS = ('encoder', 'training', 'greedy', 'beam')
REPEATED = {'encoder': 8, 'training': 3, 'greedy': 2, 'beam': 1}
WARM_UP = 2  # times before it is timed
TOLERANCE = 1e-5  # of the largest logit
IGNORED = -100  # Transformers' label of padding

Compute = Callable[[], Any]


def main() -> None:
    args = _arguments()
    if args.parity:
        print(parity())
        return
    if args.worker:
        worker = {'write': write, 'compare': compare, 'ours': ours, 'theirs': theirs}
        print(json.dumps(worker[args.worker](args)))
        return
    with tempfile.TemporaryDirectory() as folder:
        share = f'--share={folder}'
        for worker in ('write', 'compare'):
            turns.run(MODULE, Side(worker, (f'--worker={worker}', share)))
        for work in args.works:
            results = turns.take(MODULE, _sides(args, work, share), args.rounds)
            print(f'{work}\n{turns.table(results, "tokens/s", "tokens/CPU s")}\n')


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--parity', action='store_true', help='only compare logits')
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


def _sides(args: argparse.Namespace, work: str, share: str) -> list[Side]:
    threads = {'NPROC': str(args.threads), 'OMP_NUM_THREADS': str(args.threads)}
    names = {'ours': 'flaxformer_lite', 'theirs': 'Transformers'}
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
    """How many a work does at a time: none of them padding."""
    if args.work in ('greedy', 'beam'):
        return SENTENCES * args.tokens
    return int((batch['source' if args.work == 'encoder' else 'labels'] != 0).sum())


def write(args: argparse.Namespace) -> dict[str, float]:
    """T5-small with random weights, a batch, and what Transformers computes of it."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(decoder_start_token_id=0)  # all else is T5-small's
    model = T5ForConditionalGeneration(config).eval()
    model.save_pretrained(args.share / 'checkpoint')
    rng = np.random.default_rng(0)
    batch = {
        name: rng.integers(2, config.vocab_size, (SENTENCES, LENGTH), np.int32)
        for name in ('source', 'labels')
    }
    for tokens in batch.values():
        for row, length in zip(
            tokens, np.linspace(LENGTH // 2, LENGTH, SENTENCES, dtype=int), strict=True
        ):
            row[length - 1] = 1
            row[length:] = 0
    np.savez(args.share / 'batch.npz', **batch)
    given = _as_tensors(batch)
    with torch.inference_mode():
        out = model(**given)
    np.savez(
        args.share / 'expected.npz',
        hidden=out.encoder_last_hidden_state,
        logits=out.logits,
        loss=out.loss,
    )
    return {}


def _as_tensors(batch: Any) -> dict[str, Any]:
    """A batch as a model of Transformers takes it."""
    import torch

    source, labels = (torch.from_numpy(batch[k]).long() for k in ('source', 'labels'))
    return dict(
        input_ids=source,
        attention_mask=source != 0,
        labels=labels.masked_fill(labels == 0, IGNORED),
    )


def compare(args: argparse.Namespace) -> dict[str, float]:
    """Stops unless the encoder and the logits are those of Transformers."""
    import jax

    import flaxformer_lite

    model, variables = flaxformer_lite.from_pretrained(args.share / 'checkpoint')
    given = np.load(args.share / 'batch.npz')
    batch = flaxformer_lite.make_batch(given['source'], given['labels'], bos=0)
    found = {
        'hidden': jax.jit(_encode, static_argnums=0)(model, variables, given['source']),
        'logits': jax.jit(model.apply)(variables, batch['source'], batch['inputs']),
    }
    expected = np.load(args.share / 'expected.npz')
    for name, real in (('hidden', given['source']), ('logits', given['labels'])):
        theirs = expected[name][real != 0]
        difference = np.abs(found[name][real != 0] - theirs).max()
        largest = np.abs(theirs).max()
        print(f'{name}: {difference:.1e} of {largest:.3g}', file=sys.stderr)
        if not difference < TOLERANCE * largest:
            raise SystemExit(f'{name} differ by {difference} of {largest}')
    return {}


def _encode(model: Any, variables: Any, source_BS: Any) -> Any:
    """The encoder alone; `prefill` also projects the decoder's keys and values."""
    from flaxformer_lite.masks import AttentionContext, TokenBatch

    def encode(model, tokens_BS):
        source = TokenBatch.from_tokens(tokens_BS, model.special_tokens.padding)
        context = AttentionContext(
            positions_BT=source.positions_BT,
            mask_BHTS=source.segment_mask(source),
            valid_BT=source.valid_BT,
        )
        return model.encoder(model.embed(model.source_VD, tokens_BS), context)[0]

    return model.apply(variables, source_BS, method=encode)


def ours(args: argparse.Namespace) -> dict[str, float]:
    import flaxformer_lite

    loaded = flaxformer_lite.from_pretrained(args.share / 'checkpoint')
    batch = np.load(args.share / 'batch.npz')
    make = {'encoder': _our_encoder, 'training': _our_training}
    compute = make.get(args.work, _our_decoding)(args, *loaded, batch)
    return _timed(compute, args.work, _tokens(args, batch))


def _our_encoder(args, model, variables, batch) -> Compute:
    import jax

    encode = jax.jit(_encode, static_argnums=0)
    return lambda: encode(model, variables, batch['source']).block_until_ready()


def _our_training(args, model, variables, batch) -> Compute:
    import jax
    import optax

    import flaxformer_lite

    optimizer = optax.adamw(**RATE)
    state = flaxformer_lite.init_state(model, optimizer, jax.random.key(0))
    state = state.replace(params=variables['params'])
    step = flaxformer_lite.make_train_step(model, optimizer, label_smoothing=0.0)
    step = jax.jit(step, donate_argnums=0)
    trained = flaxformer_lite.make_batch(batch['source'], batch['labels'], bos=0)

    def compute():
        nonlocal state
        state, metrics = step(state, trained, jax.random.key(1))
        jax.block_until_ready((state, metrics))

    return compute


def _our_decoding(args, model, variables, batch) -> Compute:
    import flaxformer_lite

    def compute():
        found = flaxformer_lite.generate(
            model,
            variables,
            batch['source'],
            args.work,
            beams=BEAMS,
            max_length=args.tokens,
        )
        if (np.asarray(found.tokens_BNL)[..., :-1] == model.special_tokens.end).any():
            raise SystemExit('a target has ended: give fewer --tokens')

    return compute


def theirs(args: argparse.Namespace) -> dict[str, float]:
    import torch
    from transformers import T5ForConditionalGeneration

    torch.set_num_threads(args.threads)
    model = T5ForConditionalGeneration.from_pretrained(args.share / 'checkpoint')
    batch = np.load(args.share / 'batch.npz')
    make = {'encoder': _their_encoder, 'training': _their_training}
    compute = make.get(args.work, _their_decoding)(args, model, _as_tensors(batch))
    return _timed(compute, args.work, _tokens(args, batch))


def _their_encoder(args, model, batch) -> Compute:
    import torch

    encoder = model.eval().encoder

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
        if tokens.shape != (SENTENCES, 1 + args.tokens):
            raise SystemExit(f'other tokens than asked for: {tuple(tokens.shape)}')

    return compute


def parity() -> str:
    """By how much float32 logits differ from those of Transformers in float64: ours,
    and its own."""
    rows = [_differences(path) for path in sorted(GOLDENS.iterdir())]
    names = ['checkpoint', 'largest logit', 'flaxformer_lite', 'Transformers']
    return console.table(names, rows)


def _differences(path: Path) -> list[Any]:
    import jax
    import torch
    from transformers import AutoModelForSeq2SeqLM

    import flaxformer_lite

    golden = np.load(path / 'golden.npz')
    model, variables = flaxformer_lite.from_pretrained(path)
    ours = jax.jit(model.apply)(variables, golden['source'], golden['inputs'])
    padding = model.special_tokens.padding
    source, inputs = (torch.from_numpy(golden[k]).long() for k in ('source', 'inputs'))
    with torch.inference_mode():
        theirs = AutoModelForSeq2SeqLM.from_pretrained(path)(
            input_ids=source, attention_mask=source != padding, decoder_input_ids=inputs
        ).logits
    real = golden['labels'] != padding
    exact = golden['logits'][real]
    differences = [np.abs(np.asarray(x)[real] - exact).max() for x in (ours, theirs)]
    return [path.name, float(np.abs(exact).max()), *(f'{x:.1e}' for x in differences)]


if __name__ == '__main__':
    main()
