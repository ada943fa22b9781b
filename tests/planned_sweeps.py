"""Writes sweep files, and results of their runs without training."""

import json

from experiments.sweeps import planning

FIELDS = {
    'question': 'How many heads?',
    'source': 'Vaswani et al. 2017',
    'config': 'configs/wmt_small.py',
    'overrides': {'train.steps': 30},
    'arms': {
        'base': {},
        'heads=2': {'model.num_heads': 2},
        'rate': {'optimizer.schedule': 'cosine(peak=1e-3)', 'optimizer.clip': 1},
    },
    'seeds': [0, 3],
    'base': 'base',
    'measure': 'test bleu',
}
SMALL = {
    'overrides': {
        'model.d_model': 16,
        'model.num_heads': 2,
        'model.num_layers': 1,
        'train.steps': 100,
    },
    'arms': {'base': {}, 'wide': {'model.d_ff': 32}},
    'seeds': [0, 1],
}
TUNE = {'field': 'optimizer.schedule.peak', 'values': [1e-3, 3e-3, 9e-3]}
FAILED = {'status': 'failed', 'step': None, 'message': 'the disk is full'}
DIVERGED = {'status': 'diverged', 'step': 3, 'message': 'not finite'}


def write_sweep(folder, **changes):
    """Writes `heads.py` with `FIELDS` and changes to them; `...` removes one."""
    fields = {k: v for k, v in (FIELDS | changes).items() if v is not ...}
    file = folder / 'heads.py'
    file.write_text(f'def get_config():\n    return {fields!r}\n', encoding='utf-8')
    return file


def plan_small(folder, **changes):
    """Returns a sweep of two small arms, with changes to its fields."""
    return planning.load(write_sweep(folder, **SMALL | changes))


def data_sets(*splits):
    """Returns a factor of data sets."""
    return {'split': {name: {'data': f'scan(split="{name}")'} for name in splits}}


def finish(run, score=12.5):
    """Writes the result of a run, with its score by the run's measure."""
    scores = dict(direction='en-de', sentences=4, bleu_signature='', chrf_signature='')
    scores |= dict.fromkeys(('loss', 'perplexity', 'accuracy', 'bleu', 'chrf'), 1.0)
    scores[run.measure.score] = score
    result = dict(step=100, parameters=9, train_seconds=50.0, tokens_per_second=3)
    result['evaluations'] = {run.measure.set: scores}
    _write(run.path, 'result.json', result)


def fail(run, failure=FAILED):
    _write(run.path, 'failure.json', failure)


def _write(path, name, value):
    path.mkdir(parents=True, exist_ok=True)
    (path / name).write_text(json.dumps(value), encoding='utf-8')


def finish_trials(sweep):
    """Finishes all trials; `wide` is best at 3e-3, the others at 1e-3."""
    for run in sweep.trials:
        best = 3e-3 if run.arm == 'wide' else 1e-3
        finish(run, 30 - 1e4 * abs(run.value - best) + run.seed)
