"""The sweep of the golden report.

After an intended change of the page, run `PYTHONPATH=tests python
tests/experiments/reports/golden_report.py` and read the diff.
"""

import dataclasses
import os
import tempfile
from pathlib import Path

from made_runs import REFERENCES, SOURCES, fail, make, sweep, translate

from experiments.evaluation.measure import Measure
from experiments.reports import arms, figures, page
from experiments.reports.arms import Study
from experiments.runs import reading

GOLDEN = Path(__file__).parents[2] / 'goldens' / 'report.md'
HOSTILE = '<script>document.title = "taken"</script> & <b>bold</b> </script> {{ 1 }}'
DATA = f'parallel_text(train_source={HOSTILE!r})'
NOTES = ['left out: <i>nothing</i>']


def _rows(loss):
    rows = []
    for step in (10, 20):
        counts = {'tokens': 50 * step, 'seconds': step / 2}
        scores = {'set': 'test', 'loss': loss - step / 20, 'bleu': 1.0 * step}
        rows.append((step, 'train', {'loss': loss - step / 10, **counts}))
        rows.append((step, 'eval', scores | counts))
    return rows


def make_study() -> Study:
    """Creates runs in `runs/`, with HTML in sentences: one diverged, one missing.

    The arm with the better BLEU has the worse loss.
    """
    scores = {'direction': 'en-de', 'sentences': 3, 'perplexity': 9.0, 'accuracy': None}
    scores |= {'bleu_signature': 'nrefs:1|v:1'}
    paths = []
    for number, bleus in {4: (30.0, 30.1), 8: (33.0, 33.2)}.items():
        for seed, bleu in enumerate(bleus):
            result = {'parameters': 1000 * number, 'train_cpu_seconds': 7.0}
            of_set = scores | {'bleu': bleu, 'loss': bleu / 10}
            result['evaluations'] = {'test': of_set}
            fields = {'model__num_heads': number, 'train__seed': seed, 'data': DATA}
            fields['evaluation__metrics'] = 'bleu'
            path = Path(f'runs/run,heads={number},train.seed={seed}')
            rows = _rows(9.0 - seed)
            paths.append(make(path, bleu, rows=rows, result=result, **fields))
            spoiled = [f'{REFERENCES[0]} {HOSTILE}', REFERENCES[1], 'x']
            outputs = spoiled if number == 4 else REFERENCES
            translate(path, outputs, [HOSTILE, *SOURCES[1:]])
    diverged = Path('runs/run,heads=16,train.seed=0')
    fields = {'model__num_heads': 16, 'evaluation__metrics': 'bleu', 'data': DATA}
    paths.append(fail(make(diverged, rows=_rows(8.0)[:2], **fields)))
    planned = dataclasses.replace(
        sweep(Path('runs')),
        margin=0.5,
        further=(Measure('test', 'loss', higher_is_better=False),),
        contrasts=(('many', 'few'),),
        departures={'many': 'No bias.', 'most': 'No bias.'},
        digest='0123456789abcdef' * 4,
    )
    return arms.study([reading.read_run(path) for path in paths], planned)


if __name__ == '__main__':
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        figures.files = lambda figure: {}
        page.write(make_study(), Path('report'), NOTES)
        GOLDEN.write_bytes(Path('report/report.md').read_bytes())
