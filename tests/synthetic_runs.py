"""Creates run directories without training."""

import json

from experiments import storage
from experiments.config.schema import ExperimentConfig
from experiments.evaluation.measure import Measure
from experiments.reports import arms
from experiments.runs import directory, metrics_log, reading
from experiments.sweeps.schema import PlannedRun, Sweep

CONFIG = {
    'data': 'text(path="none")',
    'batch.tokens': 100,
    'model.num_heads': 4,
    'model.residual': 'pre_norm',
    'train.steps': 20,
    'train.seed': 0,
    'train.init_seed': None,
    'train.data_seed': None,
    'train.dropout_seed': None,
}
BLEU = Measure('test', 'bleu')
SIGNATURE = 'nrefs:1|v:1'
SOURCES = ['a cat sleeps here', 'the dog eats a bone', 'we see two red birds']
REFERENCES = ['eine Katze schläft hier', 'der Hund frisst Knochen', 'wir sehen Vögel']


def nest(flat):
    nested = {}
    for name, value in flat.items():
        *sections, key = name.split('.')
        part = nested
        for section in sections:
            part = part.setdefault(section, {})
        part[key] = value
    return nested


def make(path, bleu=None, outputs=(), rows=(), result=None, environment=None, **config):
    """Creates a run, which has finished if `bleu` is given.

    Args:
      bleu: BLEU on the set `test`.
      outputs: Translations of `SOURCES` to write.
      rows: (step, kind, values) of rows to write to its metrics.
      result: More entries of `result.json`.
      config: Fields with __ for the dot, such as model__num_heads=8.
    """
    fields = {name.replace('__', '.'): value for name, value in config.items()}
    with directory.open_run(path, nest(CONFIG | fields)):
        log = metrics_log.MetricsLog(path)
        for step, kind, values in rows:
            log.write(step, kind, **values)
        if environment is not None:
            storage.write_json(path / 'environment.json', environment)
        if bleu is not None:
            storage.write_json(path / 'result.json', _result(bleu) | (result or {}))
        if outputs:
            translate(path, outputs)
    return path


def _result(bleu):
    scores = {
        **dict(direction='en-de', sentences=3, loss=1.0, perplexity=2.7, accuracy=0.5),
        **dict(bleu=bleu, chrf=bleu, bleu_signature=SIGNATURE, chrf_signature='c'),
    }
    return {
        **dict(status='finished', step=20, parameters=1000, train_seconds=10.0),
        **dict(tokens_per_second=50.0, averaged_steps=[20]),
        'evaluations': {'test': scores},
    }


def digests(training, test):
    """Returns entries of a finished run's result, with digests of its text."""
    scores = _result(30.0)['evaluations']['test'] | {'text_sha256': test}
    return {'training_text_sha256': training, 'evaluations': {'test': scores}}


def translate(path, outputs, sources=SOURCES, references=REFERENCES):
    folder = path / 'translations'
    folder.mkdir(exist_ok=True)
    for name, lines in (
        ('test.source.txt', sources),
        ('test.reference.txt', references),
        ('test.step=20.txt', outputs),
    ):
        text = ''.join(f'{line}\n' for line in lines)
        (folder / name).write_text(text, 'utf-8')


def fail(path, status='diverged', step=7, message='the loss is not finite'):
    failure = {'status': status, 'step': step, 'message': message}
    (path / 'failure.json').write_text(json.dumps(failure))
    return path


def make_all(folder, runs):
    """Creates runs from name → fields with BLEU 30, 31, …; returns their paths."""
    return [
        make(folder / name, 30.0 + number, **fields)
        for number, (name, fields) in enumerate(runs.items())
    ]


def heads(folder, bleus, **config):
    """Creates runs by number of heads: {4: (30.0, 31.0)} has two seeds."""
    paths = []
    for number, values in bleus.items():
        for seed, bleu in enumerate(values):
            path = folder / f'run,heads={number},train.seed={seed}'
            fields = {'model__num_heads': number, 'train__seed': seed}
            paths.append(make(path, bleu, **fields, **config))
    return paths


def sweep(folder):
    runs = []
    arms = {}
    for arm, number, seeds in (('few', 4, 2), ('many', 8, 2), ('most', 16, 2)):
        arms[arm] = {'model.num_heads': number}
        for seed in range(seeds):
            path = folder / f'run,heads={number},train.seed={seed}'
            runs.append(PlannedRun(arm, seed, {}, path, ExperimentConfig(), BLEU))
    return Sweep(
        name='heads',
        question='How many heads?',
        source='Vaswani et al. 2017',
        config='none.py',
        arms=arms,
        base='few',
        measure=BLEU,
        published={'few': {'bleu': 25.5, 'parameters': 65e6}, 'many': {'bleu': 25.8}},
        differs='grammar, not WMT14',
        runs=tuple(runs),
    )


def study(paths, of_sweep=None, base='', measure=''):
    runs = [reading.read_run(path) for path in paths]
    return arms.study(runs, of_sweep, base, Measure.parse(measure))
