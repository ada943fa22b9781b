"""Tokenising a large text: processor time per pair, speed and memory.

    python -m benchmarks.tokenising --data="$DATA"

Tokenises several copies of the training pairs into an empty cache, each time in a new
process. On a shared machine the processor time is more reliable than the speed.
"""

import argparse
import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from experiments.command_line import console
from experiments.data import corpus, sources, tokenizers
from experiments.data.sources import text
from experiments.data.tokenizers.base import Tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--data', required=True)
    parser.add_argument('--copies', type=int, default=10)
    parser.add_argument('--rounds', type=int, default=2)
    parser.add_argument('--work', help='of its own commands: where the text is')
    args = parser.parse_args()
    if args.work:
        print(json.dumps(measure(Path(args.work))))
        return
    with tempfile.TemporaryDirectory() as folder:
        write(sources.load(args.data), Path(folder), args.copies)
        # Excludes the tokenizer's training from the time.
        _train_tokenizer(text.Text(folder, 'en', 'de'), Path(folder))
        rows = []
        for _ in range(args.rounds):
            rows.append(in_its_own(args.data, folder))
    head = ['µs a pair', 'pairs/s', 'MB']
    print(console.table(head, rows))


def write(source: sources.Source, folder: Path, copies: int) -> None:
    """Writes copies of the training pairs, and the first pair as `val`."""
    pairs = list(source.train())
    for i, language in enumerate(('en', 'de')):
        lines = ''.join(f'{pair[i]}\n' for pair in pairs)
        (folder / f'train.{language}').write_text(lines * copies, encoding='utf-8')
        (folder / f'val.{language}').write_text(f'{pairs[0][i]}\n', encoding='utf-8')


def in_its_own(data: str, folder: str) -> list[float]:
    command = [sys.executable, '-m', 'benchmarks.tokenising', f'--data={data}']
    command += [f'--work={folder}']
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    return json.loads(output)


def _train_tokenizer(source: sources.Source, folder: Path) -> Tokenizer:
    words = tokenizers.make('sentencepiece(vocab_size=8000)')
    return tokenizers.train(words, source, folder / 'tokenizer')


def measure(folder: Path) -> list[float]:
    source = text.Text(str(folder), 'en', 'de')
    words = _train_tokenizer(source, folder)
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        before, began = time.process_time(), time.perf_counter()
        made = corpus.prepare(source, words, Path(cache))
        seconds = time.perf_counter() - began
        spent = time.process_time() - before
        pairs = len(made)
        del made
        gc.collect()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [spent / pairs * 1e6, round(pairs / seconds), peak]


if __name__ == '__main__':
    main()
