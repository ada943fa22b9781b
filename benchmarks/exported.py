"""BLEU and speed of a run here and in CTranslate2, on one of its sets.

    python -m benchmarks.exported --workdir=runs/wmt_small [--quantization=int8]

Both decode greedily, each once before it is timed; CPU seconds are of all threads.
It needs the extra `ctranslate2`.
"""

import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import ctranslate2
import sacrebleu
import sentencepiece

from experiments.command_line import console, flags
from experiments.conversion import export, trained
from experiments.conversion.trained import Trained
from experiments.data import sources
from experiments.evaluation.translator import Translator
from experiments.runtime import compilation, malloc

_BATCH = 4096  # tokens


def main() -> None:
    parser = flags.Parser(__doc__)
    parser.add_argument('--workdir', type=Path, required=True, help='of the run')
    parser.add_argument('--set', default='test')
    parser.add_argument('--quantization', choices=('float32', 'int8'))
    args = parser.parse_args()
    compilation.keep_programs()
    malloc.keep()
    run = trained.read(args.workdir)
    pairs = list(sources.load(run.config.data).evaluation()[args.set])
    texts = [source for source, _ in pairs]
    references = [target for _, target in pairs]
    ours, theirs = _ours(run), _theirs(run, args.workdir, args.quantization)
    rows = []
    found = {}
    for name, translate in (('here', ours), ('ctranslate2', theirs)):
        translate(texts)
        wall, cpu = time.perf_counter(), time.process_time()
        found[name] = translate(texts)
        seconds = time.perf_counter() - wall, time.process_time() - cpu
        bleu = sacrebleu.corpus_bleu(found[name], [references]).score
        rows.append([name, bleu, *seconds])
    print(console.table(['', 'BLEU', 'seconds', 'CPU seconds'], rows, ['BLEU']))
    same = sum(map(str.__eq__, *found.values()))
    print(f'{same} of {len(texts)} translations are the same')


def _ours(run: Trained) -> Callable[[list[str]], list[str]]:
    settings = dataclasses.replace(run.config.evaluation, decode='greedy')
    translate = Translator(run.model, run.tokenizer, settings)
    return lambda texts: [x[0].text for x in translate(run.variables, texts)]


def _theirs(
    run: Trained, workdir: Path, quantization: str | None
) -> Callable[[list[str]], list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / 'model'
        export.export(workdir, 'ctranslate2', out, quantization)
        translator = ctranslate2.Translator(str(out), device='cpu')

    pieces = sentencepiece.SentencePieceProcessor(model_proto=run.tokenizer.model)

    def translate(texts: list[str]) -> list[str]:
        sources = [run.tokenizer.pieces(ids) for ids in run.tokenizer.encode(texts)]
        results = translator.translate_batch(
            sources,
            beam_size=1,
            max_batch_size=_BATCH,
            batch_type='tokens',
            max_decoding_length=256,
            suppress_sequences=[['<pad>'], ['<s>']],
        )
        return pieces.decode([result.hypotheses[0] for result in results])

    return translate


if __name__ == '__main__':
    flags.main(main)
