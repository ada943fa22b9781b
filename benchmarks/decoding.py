"""Translation speed next to Hugging Face's generate, with the same parameters.

    python -m benchmarks.decoding --workdir=runs/… --set=test_2016_flickr --beams=4

Each side translates text to text, sorted by length, with the fastest of its batch
sizes. Needs a run with model.residual=post_norm, so that Marian computes the same
logits.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import turns
from benchmarks.exported import ALPHA, EXTRA, pairs
from benchmarks.turns import Side
from experiments.data import collate, corpus, tokenizers
from experiments.data.tokenizers import base
from experiments.runs import directory

MODULE = 'benchmarks.decoding'
# The sum over its length to this power approximates GNMT's penalty, which generate()
# lacks.
BEAM = dict(length_penalty=ALPHA, early_stopping=False)
COMPARED = 32  # sentences for the comparison of logits
TOLERANCE = 1e-4


def main() -> None:
    args = _arguments()
    if args.worker:
        worker = {'export': export, 'ours': ours, 'theirs': theirs}[args.worker]
        print(json.dumps(worker(args)))
        return
    with tempfile.TemporaryDirectory() as folder:
        share = f'--share={folder}'
        turns.run(MODULE, Side('export', ('--worker=export', share)))
        sides = [
            _fastest('flaxformer_lite', ('--worker=ours', share), args.ours_sizes),
            _fastest('Hugging Face', ('--worker=theirs', share), args.their_sizes),
        ]
        print(turns.table(turns.take(MODULE, sides, args.rounds), 'sentences/s'))


def _arguments() -> argparse.Namespace:
    def sizes(text: str) -> list[int]:
        return [int(size) for size in text.split(',')]

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--workdir', type=Path, required=True, help='of a trained post-norm run'
    )
    parser.add_argument('--set', required=True, help='evaluation set of the run’s data')
    parser.add_argument('--beams', type=int, default=4, help='1: greedy')
    parser.add_argument('--dtype', choices=('float32', 'bfloat16'), default='float32')
    parser.add_argument(
        '--copies', type=int, default=1, help='of the set, to see memory grow'
    )
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument(
        '--ours_sizes', type=sizes, default='2048,8192,32768', help='in tokens'
    )
    parser.add_argument(
        '--their_sizes', type=sizes, default='50,100,200,500', help='in sentences'
    )
    parser.add_argument('--worker', help=argparse.SUPPRESS)
    parser.add_argument('--share', type=Path, help=argparse.SUPPRESS)
    parser.add_argument('--size', type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def _fastest(name: str, arguments: tuple[str, ...], sizes: list[int]) -> Side:
    sides = [
        Side(f'{name}, batch {size}', (*arguments, f'--size={size}')) for size in sizes
    ]
    if len(sides) == 1:
        return sides[0]
    speeds = turns.take(MODULE, sides, 1)
    return max(sides, key=lambda side: speeds[side.name][0]['sentences/s'])


def _timed(translate: Any, args: argparse.Namespace) -> dict[str, float]:
    """Times the second pass; the first one compiles and warms up."""
    texts, references = zip(*(pairs(args) * args.copies), strict=True)
    list(translate(texts))
    began = time.perf_counter()
    outputs = list(translate(texts))
    seconds = time.perf_counter() - began
    peak = turns.peak_megabytes()
    from sacrebleu.metrics import BLEU

    return {
        'sentences/s': len(texts) / seconds,
        'peak MB': peak,
        'BLEU': BLEU().corpus_score(outputs, [references]).score,
    }


def export(args: argparse.Namespace) -> dict[str, float]:
    import jax
    from flax import traverse_util

    from experiments.evaluation.opened_run import OpenedRun

    run = OpenedRun(args.workdir)
    variables = run.variables
    flat = traverse_util.flatten_dict(jax.device_get(variables['params']), sep='/')
    np.savez(args.share / 'params.npz', **flat)
    compared = corpus.tokenize(pairs(args)[:COMPARED], run.tokenizer)
    rows = np.arange(len(compared))
    shape = len(rows), int(compared.lengths().max())
    batch = collate.pairs_batch(compared, shape, rows, rows)
    model = _model(args, 'float32')
    with jax.default_matmul_precision('highest'):  # a GPU would round the operands
        logits = model.apply(variables, batch['source'], batch['inputs'])
    np.savez(args.share / 'logits.npz', logits=logits, **batch)
    return {}


def _model(args: argparse.Namespace, dtype: str) -> Any:
    from ml_collections import ConfigDict

    from flaxformer_lite.config import builder

    config = ConfigDict(directory.read_config(args.workdir)).model
    config.dtype = dtype
    words = tokenizers.open_saved('sentencepiece', args.workdir / 'tokenizer.model')
    return builder.build(config, words.vocab_size)


def ours(args: argparse.Namespace) -> dict[str, float]:
    import jax
    from flax import traverse_util

    from experiments.config import load
    from experiments.config.decoding import decoding_options
    from experiments.evaluation import translator
    from experiments.runtime import compilation, memory

    compilation.use_cache()
    memory.keep_freed()  # as `translate` does
    stored = load.from_dict(directory.read_config(args.workdir)).evaluation
    settings = dataclasses.replace(
        stored,
        decode=f'beam(beams={args.beams}, alpha={ALPHA})'
        if args.beams > 1
        else 'greedy',
        extra_length=EXTRA,
        batch_tokens=args.size,
    )
    words = tokenizers.open_saved('sentencepiece', args.workdir / 'tokenizer.model')
    translate = translator.Translator(
        _model(args, args.dtype), words, decoding_options(settings), args.size
    )
    params = traverse_util.unflatten_dict(
        dict(np.load(args.share / 'params.npz')), sep='/'
    )
    variables = jax.device_put({'params': params})
    return _timed(
        lambda texts: (best[0].text for best in translate(variables, texts)), args
    )


def theirs(args: argparse.Namespace) -> dict[str, float]:
    import torch

    from benchmarks import marian

    words = tokenizers.open_saved('sentencepiece', args.workdir / 'tokenizer.model')
    sizes = directory.read_config(args.workdir)['model']
    model = marian.make(
        words.vocab_size,
        **{
            k: sizes[k]
            for k in ('d_model', 'd_ff', 'num_layers', 'num_heads', 'dropout')
        },
    ).eval()
    marian.load(model, np.load(args.share / 'params.npz'))
    model = model.to('cuda' if torch.cuda.is_available() else 'cpu')
    _compare(model, np.load(args.share / 'logits.npz'))
    if args.dtype == 'bfloat16':
        model = model.to(torch.bfloat16)

    def translate(texts):
        sentences = words.encode(list(texts))
        order = sorted(range(len(texts)), key=lambda i: -len(sentences[i]))
        outputs = [''] * len(texts)
        for start in range(0, len(order), args.size):
            rows = order[start : start + args.size]
            tokens = _generate(model, [sentences[i] for i in rows], args.beams)
            for i, text in zip(rows, words.decode(tokens), strict=True):
                outputs[i] = text
        return outputs

    return _timed(translate, args)


def _generate(model: Any, sentences: list[list[int]], beams: int) -> list[list[int]]:
    import torch

    longest = len(sentences[0])
    source = torch.full((len(sentences), longest + 1), base.PAD)
    for row, sentence in zip(source, sentences, strict=True):
        row[: len(sentence) + 1] = torch.tensor([*sentence, base.EOS])
    with torch.inference_mode():
        return model.generate(
            source.to(model.device),
            attention_mask=(source != base.PAD).long().to(model.device),
            do_sample=False,
            max_new_tokens=longest + EXTRA,
            num_beams=beams,
            **(BEAM if beams > 1 else {}),
        ).tolist()


def _compare(model: Any, golden: Any) -> None:
    import torch

    source, inputs = (
        torch.from_numpy(golden[k]).long().to(model.device)
        for k in ('source', 'inputs')
    )
    with torch.inference_mode():
        logits = model(
            source, source != 0, decoder_input_ids=inputs, use_cache=False
        ).logits
    real = golden['labels'] != 0
    difference = np.abs(logits.cpu().numpy() - golden['logits'])[real].max()
    print(f'logits differ by at most {difference:.1e}', file=sys.stderr)
    if not difference < TOLERANCE:
        raise SystemExit(
            f'logits of Marian and ours differ by {difference}: not the same model'
        )


if __name__ == '__main__':
    main()
