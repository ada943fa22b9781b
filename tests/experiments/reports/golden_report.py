"""The sweeps of the golden reports.

After an intended change of the page, run `PYTHONPATH=tests python
tests/experiments/reports/golden_report.py` and read the diff.
"""

import dataclasses
import os
import tempfile
from pathlib import Path

import pytest
from planned_sweeps import TUNE, finish_trials, plan_small
from synthetic_runs import REFERENCES, SOURCES, fail, make, sweep, translate

from experiments.evaluation.measure import Measure
from experiments.reports import arms, figures, page
from experiments.reports.arms import Study
from experiments.runs import reading
from experiments.sweeps import planning

GOLDENS = Path(__file__).parents[2] / 'goldens'
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


FACTORS = {
    'rows': {f'{n}': {'data': f'grammar(pairs={n})'} for n in (2000, 3000)},
    'norm': {
        'pre': {'model.residual': 'pre_norm'},
        'post': {'model.residual': 'post_norm'},
    },
}
SCORES = {
    '2000, pre': (30.0, 31.0, 29.5),
    '2000, post': (32.0, 33.5, 32.0),
    '3000, pre': (40.0, 41.5, 40.5),
    '3000, post': (40.5, 41.0, 41.5),
}


def make_factorial_study() -> Study:
    """Creates runs in `runs/`: tuned arms with two norms on two data sets.

    The last run failed. Val BLEU rises to the test score in 20 steps.
    """
    planned = plan_small(
        Path(),
        arms=...,
        factors=FACTORS,
        base='2000, pre',
        seeds=[0, 1, 2],
        contrasts=[('2000, post', '2000, pre')],
        margin='5%',
        tune=TUNE | {'seeds': [7, 8]},
        target=31.0,
        measure=['test bleu', 'test chrf'],
    )
    finish_trials(planned)
    planned = planning.plan(planned)
    for run in planned.runs:
        score = SCORES[run.arm][run.seed]
        rows = [
            (
                step,
                'eval',
                {'set': 'val', 'bleu': score * step / 20, 'seconds': 2.0 * step},
            )
            for step in (10, 15, 20)
        ]
        outputs = [*REFERENCES[:2], f'{run.arm} {run.seed}']
        make(run.path, score, outputs, rows, train__seed=run.seed)
    (planned.runs[-1].path / 'result.json').unlink()
    fail(planned.runs[-1].path)
    return arms.study([reading.read_run(run.path) for run in planned.runs], planned)


STUDIES = {'report': make_study, 'factorial': make_factorial_study}


def write_report(name: str, folder: Path) -> Study:
    """Writes a report without files of figures; the current directory has its runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, 'files', lambda figure: {})
        study = STUDIES[name]()
        page.write(study, folder, NOTES)
    return study


if __name__ == '__main__':
    for name in STUDIES:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            write_report(name, Path('report'))
            text = Path('report/report.md').read_bytes()
            (GOLDENS / f'{name}.md').write_bytes(text)
