"""A training step on one GPU, next to the same model in compiled PyTorch.

    python -m benchmarks.gpu_peers --out=peers.json

Every side trains in bfloat16 with 24,576 target tokens per step, a vocabulary of
37,000, label smoothing and Adam. Rows of `ours` pack eight pairs of 32 tokens; those of
the peers have one pair. `marian` is Transformers' Marian, `nn` is
`torch.nn.Transformer` with tied embeddings.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from experiments.command_line import console

VOCAB_SIZE = 37_000
TOKENS = 24_576
PAIR = 32  # tokens of a source, and of a target
STEPS = 20  # timed together
SIDES = ('ours', 'ours_short_rows', 'marian', 'nn')
SIZES = ('wmt_base_bf16', 'wmt_big_bf16')


class Case(NamedTuple):
    """A compiled training step, which `run` repeats, and figures of compiling it."""

    run: Callable[[int], None]
    report: dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--sides', default=','.join(SIDES))
    parser.add_argument('--sizes', default=','.join(SIZES), help='configs')
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--tokens', type=int, default=TOKENS, help='of a step')
    parser.add_argument('--out', type=Path, help='a JSON file for every figure')
    parser.add_argument('--side', choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        serve(args.side, args.sizes.split(','), args.tokens)
    else:
        compare(args)


def compare(args: argparse.Namespace) -> None:
    command = [sys.executable, '-m', 'benchmarks.gpu_peers', *sys.argv[1:]]
    processes = {
        side: subprocess.Popen(
            [*command, f'--side={side}'],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for side in args.sides.split(',')
    }
    rows = {}
    for side, process in processes.items():
        for size in args.sizes.split(','):
            if found := read_line(process):
                rows[side, size] = {'side': side, 'size': size, **found}
    times: dict[Any, list[float]] = {key: [] for key in rows}
    for _ in range(args.rounds):
        for side, size in rows:
            process = processes[side]
            print(size, file=process.stdin, flush=True)
            if found := read_line(process):
                times[side, size].append(found['ms'])
    for process in processes.values():
        process.stdin.close()
        process.wait()
    for key, row in rows.items():
        row['ms'] = statistics.median(times[key])
        row['all ms'] = times[key]
        row['tokens/s'] = args.tokens / row['ms'] * 1000
    if args.out:
        args.out.write_text(json.dumps(list(rows.values()), indent=1))
    keys = ['side', 'size', 'ms', 'tokens/s', 'peak GB', 'compile s', 'first losses']
    print(console.table(keys, [[row[k] for k in keys] for row in rows.values()]))


def read_line(process: subprocess.Popen) -> dict[str, Any] | None:
    assert process.stdout
    for line in process.stdout:
        if line.startswith('{'):
            print(line, end='', file=sys.stderr, flush=True)
            return json.loads(line)
    print(f'a side ended early, with status {process.wait()}', file=sys.stderr)
    return None


def serve(side: str, sizes: list[str], tokens: int) -> None:
    """Compiles each size, then times the size named on each line of stdin."""
    length = {'ours': 256, 'ours_short_rows': 128}.get(side)
    cases = {}
    for size in sizes:
        if length:
            cases[size] = our_case(size, tokens // length, length)
        else:
            cases[size] = their_case(side, size, tokens // PAIR)
        print(json.dumps(cases[size].report), flush=True)
    for line in sys.stdin:
        case = cases[line.strip()]
        case.run(2)
        began = time.perf_counter()
        case.run(STEPS)
        took = (time.perf_counter() - began) / STEPS
        print(json.dumps({'ms': 1000 * took}), flush=True)


def our_case(size: str, rows: int, length: int) -> Case:
    import jax

    from benchmarks import gpu
    from experiments.runtime import compilation

    kind = 'flash' if jax.default_backend() == 'gpu' else 'softmax'
    step, state, batch, key, _ = gpu.step(size, kind, rows, length, length // PAIR)
    began = time.perf_counter()
    program = compilation.compile_program(step, state, batch, key)
    took = time.perf_counter() - began
    held = {'state': state}
    del state

    def train() -> Any:
        held['state'], metrics = program(held['state'], batch, key)
        return metrics

    def run(steps: int) -> None:
        for _ in range(steps):
            metrics = train()
        jax.block_until_ready(metrics)

    losses = []
    for _ in range(3):
        sums = train().sums
        losses.append(float(sums.loss / sums.tokens))
    memory = program.memory_analysis()
    used = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    used += memory.output_size_in_bytes - memory.alias_size_in_bytes
    return Case(run, report(took, used, losses))


def their_case(side: str, size: str, rows: int) -> Case:
    import torch
    from torch.nn import functional

    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    torch.set_float32_matmul_precision('high')
    torch.manual_seed(0)
    held = torch.cuda.memory_allocated()
    logits_of = {'marian': marian, 'nn': nn_transformer}[side](size, device)
    parameters = logits_of.parameters()
    optimizer = torch.optim.AdamW(
        parameters, lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    source, inputs, labels = torch.randint(
        4, VOCAB_SIZE, (3, rows, PAIR), device=device
    )

    def loss_of(source, inputs, labels):
        with torch.autocast(device, torch.bfloat16):
            logits = logits_of(source, inputs)
        logits = logits.float().view(-1, VOCAB_SIZE)
        return functional.cross_entropy(logits, labels.view(-1), label_smoothing=0.1)

    compiled = torch.compile(loss_of)

    def train() -> torch.Tensor:
        loss = compiled(source, inputs, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    def run(steps: int) -> None:
        for _ in range(steps):
            loss = train()
        loss.item()  # waits

    began = time.perf_counter()
    losses = [train().item() for _ in range(3)]
    took = time.perf_counter() - began
    used = torch.cuda.max_memory_allocated() - held  # sizes are in increasing order
    return Case(run, report(took, used, losses))


def report(compile_seconds: float, used: int, losses: list[float]) -> dict[str, Any]:
    return {
        'compile s': round(compile_seconds, 1),
        'peak GB': used / 1e9,
        'first losses': ' '.join(f'{loss:.4f}' for loss in losses),
    }


def sizes_of(size: str) -> dict[str, Any]:
    import importlib

    model = importlib.import_module(f'configs.{size}').get_config().model
    names = ('d_model', 'd_ff', 'num_layers', 'num_heads', 'dropout')
    return {name: model[name] for name in names}


def marian(size: str, device: str) -> Any:
    import torch

    from benchmarks import marian as model_of

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model_of.make(VOCAB_SIZE, **sizes_of(size))

        def forward(self, source, inputs):
            return self.model(
                input_ids=source, decoder_input_ids=inputs, use_cache=False
            ).logits

    return Logits().to(device).train()


def nn_transformer(size: str, device: str) -> Any:
    import torch

    sizes = sizes_of(size)
    width = sizes['d_model']

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(VOCAB_SIZE, width)
            torch.nn.init.normal_(self.embedding.weight, std=width**-0.5)
            self.transformer = torch.nn.Transformer(
                width,
                sizes['num_heads'],
                sizes['num_layers'],
                sizes['num_layers'],
                sizes['d_ff'],
                sizes['dropout'],
                batch_first=True,
            )
            mask = torch.nn.Transformer.generate_square_subsequent_mask(PAIR)
            self.register_buffer('mask', mask)
            self.register_buffer('positions', torch.randn(PAIR, width))
            self.dropout = torch.nn.Dropout(sizes['dropout'])

        def embed(self, tokens):
            x = self.embedding(tokens) * width**0.5
            return self.dropout(x + self.positions)

        def forward(self, source, inputs):
            hidden = self.transformer(
                self.embed(source),
                self.embed(inputs),
                tgt_mask=self.mask,
                tgt_is_causal=True,
            )
            return torch.nn.functional.linear(hidden, self.embedding.weight)

    return Logits().to(device).train()


if __name__ == '__main__':
    main()
