"""Parts from elsewhere: kept with a run, found again, told of where they changed."""

import hashlib
import importlib
import json
import re
import sys

import jax
import numpy as np
import pages
import pytest
import small_runs
from ml_collections import ConfigDict

import experiments
from experiments import evaluate, kinds, translate
from experiments.config import load, parts, schema
from experiments.errors import UserError
from experiments.runtime import mesh
from flaxformer_lite.attention.base import Attention
from flaxformer_lite.config import variants

EXAMPLE = pages.files('docs/extend.md')['my_parts.py']
FIELDS = small_runs.FIELDS | {
    'train.steps': 2,
    'optimizer.schedule': 'noam(warmup=4)',
    'evaluation.sets': 'val',
    'evaluation.decode': 'greedy',
    'evaluation.average': 1,
    'model.attention': 'my_parts.Euclidean',
}


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Moves to a folder, as a command there begins: nothing of it is imported yet."""
    paths = list(sys.path)

    def go(name):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, 'path', [str(folder), *paths])
        for module in [x for x in sys.modules if x.startswith('my_')]:
            monkeypatch.delitem(sys.modules, module)
        importlib.invalidate_caches()
        return folder

    return go


def train(path, *arguments, **changes):
    small_runs.train(path, *small_runs.flags(FIELDS, **changes), *arguments)


def command(monkeypatch, module, *arguments):
    monkeypatch.setattr(sys, 'argv', [module.__name__, *map(str, arguments)])
    module.main()


def test_the_example_trains_and_is_used_from_elsewhere_then_changes(
    world, monkeypatch, capsys, cache
):
    here = world('here')
    (here / 'my_parts.py').write_text(EXAMPLE)
    data = small_runs.source(small_runs.write_text(here, val=4))
    path = here / 'run'
    train(path, data=data)
    record = {
        'files': {'my_parts.py': hashlib.sha256(EXAMPLE.encode()).hexdigest()},
        'earlier': [],
    }
    assert json.loads((path / 'parts.json').read_text()) == record
    assert (path / 'parts' / 'my_parts.py').read_text() == EXAMPLE

    (world('there') / 'in.en').write_text('Tom sleeps.\n')
    used = 'warning: my_parts is not found from here: its copy in .*/run/parts is used'
    capsys.readouterr()
    command(monkeypatch, evaluate, f'--workdir={path}')
    out, err = capsys.readouterr()
    assert re.search(r'^val +4 ', out, re.MULTILINE) and re.fullmatch(f'{used}\n', err)
    world('there')
    with open('in.en') as lines:
        monkeypatch.setattr(sys, 'stdin', lines)
        command(monkeypatch, translate, f'--workdir={path}')
    out, err = capsys.readouterr()
    assert out.count('\n') == 1 and re.fullmatch(f'{used}\n', err)

    world('here')
    (here / 'my_parts.py').write_text(f'{EXAMPLE}\n')
    changed = rf'{here}/my_parts.py has changed since .*/run was made with it'
    train(path, data=data)
    assert re.match(changed, capsys.readouterr().out)
    more = dict(data=data, train__steps=4)
    with pytest.raises(UserError, match=f'{changed}: restore it from .*/run/parts, '):
        train(path, **more)
    train(path, '--accept_changed_parts', **more)
    assert 'resuming at step 2' in capsys.readouterr().out
    kept = json.loads((path / 'parts.json').read_text())
    assert kept['earlier'] == [{'folder': 'parts.1', 'files': record['files']}]
    assert (path / 'parts.1' / 'my_parts.py').read_text() == EXAMPLE
    assert (path / 'parts' / 'my_parts.py').read_text() == f'{EXAMPLE}\n'


HOW_TO_TRAIN_AND_DECODE = """
import jax
import jax.numpy as jnp
import optax

from flaxformer_lite.decoding.strategies.base import Strategy
from flaxformer_lite.training.schedules.base import Schedule


class Falling(Schedule):
    steps: int
    peak: float = 1.0

    def __call__(self, count):
        return self.peak * (1 - count / self.steps)


def sign_descent(learning_rate, factor):
    return optax.chain(
        optax.stateless(lambda updates, params: jax.tree.map(jnp.sign, updates)),
        optax.scale(factor),
        optax.scale_by_learning_rate(learning_rate),
    )


class Last(Strategy):
    def choose(self, state, logits_BNV, total_BNV):
        may_come_BV = jnp.isfinite(total_BNV[:, 0])
        last = total_BNV.shape[2] - 1
        return last - jnp.argmax(may_come_BV[:, ::-1], 1, keepdims=True)
"""


def test_schedule_optimizer_and_strategy_are_ones_own(world, cache):
    here = world('here')
    (here / 'my_parts.py').write_text(HOW_TO_TRAIN_AND_DECODE)
    path = here / 'run'
    train(
        path,
        data=small_runs.source(small_runs.write_text(here, val=4)),
        model__attention='softmax',
        optimizer__schedule='my_parts.Falling(peak=0.02)',
        optimizer__name='my_parts.sign_descent(factor=0.5)',
        evaluation__decode='my_parts.Last',
        train__log_every=1,
        checkpoint__every=1,
    )
    rows = map(json.loads, (path / 'metrics.jsonl').read_text().splitlines())
    rates = [row['learning_rate'] for row in rows if row['kind'] == 'train']
    np.testing.assert_allclose(rates, [0.02, 0.01], rtol=1e-6)

    world('there')
    run = experiments.open_run(path)
    abstract = mesh.abstract_variables(run.model)
    before, after = (
        run.trained.checkpoints.average([step], abstract).variables for step in (1, 2)
    )
    moved = jax.tree.map(lambda x, y: np.abs(np.asarray(y - x)).ravel(), before, after)
    moved = np.concatenate(jax.tree.leaves(moved))
    # What has no gradient stays, such as the embeddings of pieces that do not come.
    np.testing.assert_allclose(moved[moved > 0], 0.5 * 0.01, rtol=1e-3)
    assert (moved > 0).mean() > 0.5

    (ids,) = run.tokenizer.encode(['Tom sleeps.'])
    # The end token comes at the limit.
    pieces = len(ids) + FIELDS['evaluation.extra_length'] - 1
    last = run.model.vocab_size - 1
    assert run.translate(['Tom sleeps.']) == run.tokenizer.decode([[last] * pieces])


def test_of_a_package_the_files_that_were_imported_are_kept(world, tmp_path):
    folder = world('here') / 'my_package'
    folder.mkdir()
    for name in ('__init__', 'near', 'far'):
        (folder / f'{name}.py').write_text('')
    importlib.import_module('my_package.near')
    fields = dict.fromkeys(schema.fields()) | {
        'model.attention': '[softmax, my_package.near.C(x=1)]',
        'model.norm': 'flaxformer_lite.norms.rms.Rms',
        'evaluation.decode': 'mbr(utility="my_metrics.Words")',
    }
    assert parts.packages(fields) == ['my_metrics', 'my_package']
    parts.save(tmp_path, fields)
    kept = ['my_package/__init__.py', 'my_package/near.py']
    assert list(json.loads((tmp_path / 'parts.json').read_text())['files']) == kept
    assert all((tmp_path / 'parts' / name).exists() for name in kept)


class Mine(Attention):
    """Can be imported again: this file is a module."""

    width: int = 1


class Marked(Mine):
    """Belongs to what is run."""

    __module__ = '__main__'


def test_a_class_in_a_config_is_stored_by_its_name():
    model = {'attention': Mine, 'decoder_attention': Mine(width=3)}
    stored = load.from_config_dict(ConfigDict({'model': model})).model
    assert stored.attention == f'{__name__}.Mine'
    assert stored.decoder_attention == f'{__name__}.Mine(width=3)'
    assert variants.find(stored, 'decoder_attention') is Mine
    with pytest.raises(UserError, match='^model.attention: .__main__.Marked. cannot'):
        load.from_config_dict(ConfigDict({'model': {'attention': Marked}}))


@pytest.mark.parametrize(
    ('code', 'message'),
    [
        ('return jnp.ones(2) + jnp.ones(3)', 'ncompatible shapes'),
        ('raise ValueError("of mine")', 'of mine'),
    ],
)
def test_what_a_part_raises_at_work_keeps_its_traceback_and_says_where(
    code, message, world
):
    here = world('here')
    (here / 'my_parts.py').write_text(
        EXAMPLE.split('        square')[0] + ' ' * 8 + code
    )
    data = small_runs.source(small_runs.write_text(here, val=4))
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        train(here / 'run', data=data)
    assert caught.traceback[-1].path == here / 'my_parts.py' or message != 'of mine'
    assert caught.value.__notes__[-1] == f'while checking parts, of {here / "run"}'
    assert not (here / 'run').exists()


def test_an_error_of_a_module_keeps_its_traceback(world):
    here = world('here')
    (here / 'my_parts.py').write_text("int('of mine')\n")
    data = small_runs.source(small_runs.write_text(here, val=4))
    with pytest.raises(ImportError, match='^my_parts cannot be imported') as caught:
        train(here / 'run', data=data)
    assert "int() with base 10: 'of mine'" in str(caught.value.__cause__)


def test_what_a_part_refuses_is_one_line(world):
    here = world('here')
    refusing = "    def __post_init__(self):\n        raise ValueError('no more')\n"
    (here / 'my_parts.py').write_text(EXAMPLE + refusing)
    data = small_runs.source(small_runs.write_text(here, val=4))
    with pytest.raises(UserError, match='^model.attention: no more$'):
        train(here / 'run', data=data)


def test_the_page_has_a_row_for_each_field_that_names_a_part():
    rows = dict(
        re.findall(
            r'^\| `([\w.]+)` \| \[`(\S+)/`\].* \|$', pages.text('docs/extend.md'), re.M
        )
    )
    plain = {
        field
        for field in schema.part_fields()
        if not field.startswith(('model.decoder_', 'model.cross_'))
    }
    assert set(rows) == plain - {'optimizer.name'}  # optax's; it has no folder
    folders = {f'model.{kind}': folder for kind, folder in variants.FOLDERS.items()}
    for field, folder in (folders | kinds.FOLDERS).items():
        assert rows[field] == folder.package.replace('.', '/')
