"""BLEU and speed of a run here and in CTranslate2, float32 and int8, on one set.

    python -m benchmarks.exported --workdir=runs/wmt_small

Translates text to text, greedily or with `--beams=4`, with as many parallel batches as
cores. Needs the extra `ctranslate2`.
"""

import argparse
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import turns
from benchmarks.turns import Side
from experiments.data import sources, tokenizers
from experiments.evaluation import sets
from experiments.runs import directory

MODULE = 'benchmarks.exported'
QUANTIZATIONS = ('float32', 'int8')
ALPHA = 0.6  # of the length penalty
EXTRA = 50  # extra tokens of a translation compared with the longest source

Translate = Callable[[list[str]], list[str]]


def main() -> None:
    args = _arguments()
    if args.worker:
        worker = {'export': export, 'ours': ours, 'theirs': theirs}[args.worker]
        print(json.dumps(worker(args)))
        return
    with tempfile.TemporaryDirectory() as folder:
        share = f'--share={folder}'
        turns.run(MODULE, Side('export', ('--worker=export', share)))
        sides = [Side('flaxformer_lite', ('--worker=ours', share))]
        for quantization in QUANTIZATIONS:
            chosen = f'--quantization={quantization}'
            name = f'CTranslate2, {quantization}'
            sides.append(Side(name, ('--worker=theirs', share, chosen)))
        results = turns.take(MODULE, sides, args.rounds)
    print(turns.table(results, 'sentences/CPU s', 'sentences/s'))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--workdir', type=Path, required=True, help='of a trained run')
    parser.add_argument('--set', default='test', help='evaluation set of its data')
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--beams', type=int, default=1, help='1: greedy')
    parser.add_argument('--batch_tokens', type=int, default=4096, help='of a source')
    parser.add_argument('--worker', help=argparse.SUPPRESS)
    parser.add_argument('--share', type=Path, help=argparse.SUPPRESS)
    parser.add_argument('--quantization', help=argparse.SUPPRESS)
    return parser.parse_args()


def export(args: argparse.Namespace) -> dict[str, float]:
    from flaxformer_checkpoints.exports import export

    for quantization in QUANTIZATIONS:
        out = args.share / quantization
        export.export(args.workdir, 'ctranslate2', out, quantization)
    return {}


def ours(args: argparse.Namespace) -> dict[str, float]:
    from experiments.config.decoding import decoding_options
    from experiments.evaluation.opened_run import OpenedRun
    from experiments.evaluation.translator import Translator
    from experiments.runtime import compilation, memory

    compilation.use_cache()
    memory.keep_freed()  # as `translate` does
    run = OpenedRun(args.workdir)
    settings = dataclasses.replace(
        run.config.evaluation,
        decode=f'beam(beams={args.beams}, alpha={ALPHA})'
        if args.beams > 1
        else 'greedy',
        batch_tokens=args.batch_tokens,
        extra_length=EXTRA,
    )
    options = decoding_options(settings)
    translator = Translator(run.model, run.tokenizer, options, args.batch_tokens)

    def translate(texts: list[str]) -> list[str]:
        return [best[0].text for best in translator(run.variables, texts)]

    return _timed(translate, args)


def theirs(args: argparse.Namespace) -> dict[str, float]:
    import ctranslate2

    words = tokenizers.open_saved('sentencepiece', args.workdir / 'tokenizer.model')
    ids = {piece: i for i, piece in enumerate(words.pieces([*range(words.vocab_size)]))}
    translator = ctranslate2.Translator(
        str(args.share / args.quantization),
        device='cpu',
        inter_threads=len(os.sched_getaffinity(0)),
        # Two threads that share a step wait for each other, which takes a third more
        # CPU time.
        intra_threads=1,
    )

    def translate(texts: list[str]) -> list[str]:
        sentences = [words.pieces(tokens) for tokens in words.encode(texts)]
        results = translator.translate_batch(
            sentences,
            beam_size=args.beams,
            length_penalty=ALPHA,
            max_batch_size=args.batch_tokens,
            batch_type='tokens',
            max_decoding_length=max(map(len, sentences)) + EXTRA,
        )
        found = [[ids[piece] for piece in x.hypotheses[0]] for x in results]
        return words.decode(found)

    return _timed(translate, args)


def pairs(args: argparse.Namespace) -> list[tuple[str, str]]:
    data = directory.read_config(args.workdir)['data']
    evaluation = sources.load(data).evaluation()
    return sets.first_references(sets.select(evaluation, args.set, '--set')[args.set])


def _timed(translate: Translate, args: argparse.Namespace) -> dict[str, float]:
    """Times the second pass over the set; the first one compiles and warms up."""
    texts, references = map(list, zip(*pairs(args), strict=True))
    translate(texts)
    wall, cpu = time.perf_counter(), time.process_time()
    outputs = translate(texts)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = turns.peak_megabytes()
    from sacrebleu.metrics import BLEU

    return {
        'sentences/CPU s': len(texts) / cpu,
        'sentences/s': len(texts) / wall,
        'BLEU': BLEU().corpus_score(outputs, [references]).score,
        'same as here': _same(outputs, args),
        'peak MB': peak,
    }


def _same(outputs: list[str], args: argparse.Namespace) -> float:
    path = args.share / 'translations.json'
    if not path.exists():
        path.write_text(json.dumps(outputs), encoding='utf-8')
    first = json.loads(path.read_text('utf-8'))
    return sum(map(str.__eq__, outputs, first)) / len(first)


if __name__ == '__main__':
    main()
