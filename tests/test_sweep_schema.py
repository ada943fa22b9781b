"""A sweep's file: what it says, the runs it stands for, and what is refused by name."""

import hashlib

import pytest

from experiments.command_line import flags
from experiments.errors import UserError
from experiments.runs import directory
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


def write_sweep(folder, **changes):
    """A file with `FIELDS` and changes to them, `...` for none."""
    fields = {k: v for k, v in (FIELDS | changes).items() if v is not ...}
    file = folder / 'heads.py'
    file.write_text(f'def get_config():\n    return {fields!r}\n', encoding='utf-8')
    return file


def test_a_sweep_is_what_its_file_says(tmp_path):
    sweep = planning.load(write_sweep(tmp_path, published={'base': {'bleu': 25.8}}))
    assert (sweep.name, sweep.question) == ('heads', 'How many heads?')
    assert sweep.arms['heads=2'] == {'model.num_heads': 2}
    assert sweep.seeds == (0, 3)
    assert sweep.published == {'base': {'bleu': 25.8}}
    assert sweep.differs == ''
    file = tmp_path / 'heads.py'
    assert sweep.digest == hashlib.sha256(file.read_bytes()).hexdigest()


def test_overrides_may_be_nested(tmp_path):
    arms = {'base': {}, 'heads=2': {'model': {'num_heads': 2}}}
    file = write_sweep(tmp_path, overrides={'train': {'steps': 30}}, arms=arms)
    sweep = planning.load(file)
    assert sweep.overrides == {'train.steps': 30}
    assert sweep.arms == {'base': {}, 'heads=2': {'model.num_heads': 2}}


def test_its_runs_are_those_that_the_command_line_makes(tmp_path):
    runs = planning.load(write_sweep(tmp_path)).runs
    assert [(run.arm, run.seed) for run in runs] == [
        *[('base', 0), ('base', 3)],
        *[('heads=2', 0), ('heads=2', 3)],
        *[('rate', 0), ('rate', 3)],
    ]
    argv = ['--config=configs/wmt_small.py', '--config.train.steps=30']
    rate = '--config.optimizer.schedule=cosine(peak=1e-3)'
    argv += [rate, '--config.optimizer.clip=1', '--config.train.seed=3']
    _, settings = flags.parse(flags.Parser(None), argv)
    assert runs[5].overrides == settings.overrides
    assert runs[5].config == settings.config
    assert [str(run.path) for run in runs] == [
        *('runs/heads/base/seed=0', 'runs/heads/base/seed=3'),
        *('runs/heads/heads=2/seed=0', 'runs/heads/heads=2/seed=3'),
        *('runs/heads/rate/seed=0', 'runs/heads/rate/seed=3'),
    ]


def test_what_is_there_of_a_file_that_was_changed_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = planning.load(write_sweep(tmp_path)).runs[0]
    with directory.open_run(first.path, first.config.to_dict()):
        pass
    again = planning.load(write_sweep(tmp_path)).runs[0]
    assert directory.check_directory(again.path, again.config.to_dict()) == 'resumes'
    for overrides, message in (
        ({'train.steps': 40}, 'heads/base/seed=0 is of fewer train.steps'),
        ({'model.d_ff': 8}, 'heads/base/seed=0 holds a run with a different config'),
    ):
        with pytest.raises(UserError, match=message):
            planning.load(write_sweep(tmp_path, overrides=overrides))


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'arms': {}}, 'arms is missing'),
        ({'arms': {'a': 3}}, r"arms\['a'\] must be of type dict, not 3"),
        ({'arms': {'base': {'model.d_k': None}}}, 'model.d_k must be int, .*None'),
        (
            {'overrides': {'train.seed': 3}},
            'the sweep sets train.seed: give it in seeds',
        ),
        ({'base': 'bass'}, "there is no arm 'bass'.*'base'"),
        ({'published': {'bass': {}}}, "there is no arm 'bass'"),
        ({'published': {'base': {'blue': 1.0}}}, "must be one of bleu.*'blue'"),
        ({'measure': 'test blue'}, "measure='test blue' is not the name of a set and"),
        ({'contrasts': [('base', 'heads')]}, "there is no arm 'heads'"),
        ({'contrasts': [('base', 'base')]}, r"\('base', 'base'\) is not a pair of two"),
        ({'contrasts': ['base']}, "contrasts: 'base' is not a pair of two arms"),
        ({'contrasts': [(['base'], 'rate')]}, "'base'.* is not a pair of two arms"),
        ({'contrasts': [({}, 'rate')]}, 'contrasts: .* is not a pair of two arms'),
        ({'overrides': {None: 2}}, 'overrides: None: a field name must be text, not'),
        ({'arms': {'base': {1: 2}}}, r"arms\['base'\]: 1: a field name must be text"),
        (
            {'arms': {'base': {'model': {1: 2}}}},
            r"arms\['base'\]: model.1: a field name must be text, not int",
        ),
        ({'arms': {'base': {}, 3: {}}}, 'arms: the name 3 must be text, not int'),
        ({'published': {'base': {1: 2}}}, r"published\['base'\]: 1: a field name"),
        (
            {'arms': ..., 'factors': {1: {'base': {}, 'b': {}}}},
            'factors: the name 1 must be text, not int',
        ),
        (
            {'arms': ..., 'factors': {'x': {'base': {}, None: {}}}},
            r"factors\['x'\]: the name None must be text, not NoneType",
        ),
        (
            {'tune': {'field': 'model.d_ff', 'values': [8, 9], 'seeds': [[1]]}},
            r"train.seed must be int, .*, not '\[1\]'",
        ),
        ({'margin': -1.0}, 'margin must be at least 0, not -1.0'),
        ({'seeds': []}, 'seeds is missing: give it'),
        ({'seeds': [-1]}, 'train.seed must be at least 0'),
        ({'question': 3}, 'question must be of type str, not 3'),
        ({'question': ...}, 'sweep needs question'),
        ({'qestion': 'a'}, "unknown argument 'qestion'; sweep takes question"),
        ({'seeds': [1, 1]}, 'base, seed 1 and base, seed 1 are the same run'),
        (
            {'arms': {'base': {}, 'four': {'model.num_heads': 4}}},
            'base, seed 0 and four, seed 0 are the same run',
        ),
        (
            {'arms': {'base': {}, 'Base!': {'model.num_heads': 2}}},
            'or have the same directory, runs/heads/base/seed=0',
        ),
        (
            {'arms': {'base': {'model.nun_heads': 2}}},
            "arm 'base': .*model.nun_heads.*model.num_heads",
        ),
        ({'arms': {'base': {'model.num_heads': 0}}}, "arm 'base': model.num_heads"),
        ({'config': 'configs/none.py'}, 'configs/none.py: no such file'),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path, changes, message):
    with pytest.raises(UserError, match=message) as error:
        planning.load(write_sweep(tmp_path, **changes))
    assert 'heads' in str(error.value)  # the sweep's


@pytest.mark.parametrize('field', ['overrides', 'arms', 'factors', 'published'])
def test_fields_that_contain_themselves_are_refused_by_name(tmp_path, field):
    file = tmp_path / 'heads.py'
    file.write_text(f"""
def get_config():
    fields = {FIELDS!r}
    nested = {{}}
    nested['model'] = nested['train'] = nested
    fields['{field}'] = nested
    if '{field}' == 'factors':
        del fields['arms']
    return fields
""")
    message = f'heads.py: {field}.*: model.model.*nests deeper than 10 levels'
    with pytest.raises(UserError, match=message):
        planning.load(file)


def test_what_is_no_file_of_a_sweep_is_refused(tmp_path):
    file = tmp_path / 'heads.py'
    for text, message in (
        ('def get_config():\n    return 1 / 0\n', 'heads.py:2: ZeroDivisionError'),
        ('x = 3\n', 'get_config.. that returns a dictionary'),
    ):
        file.write_text(text, encoding='utf-8')
        with pytest.raises(UserError, match=message):
            planning.load(file)
    with pytest.raises(UserError, match='no such file; the project has'):
        planning.load(tmp_path / 'none.py')
