"""Names of evaluation sets: kept by any file system, or refused before training."""

import io
import sys

import pytest

from configs import wmt_small
from experiments import storage
from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stop
from experiments.config import load
from experiments.data import set_names
from experiments.errors import UserError
from experiments.evaluation.sets import chosen
from experiments.evaluation.translation_files import outputs_path
from experiments.training import setup

GOOD = [
    *('val', 'test_2016_flickr', 'news.2014', 'a b', 'Größe', '-x', 'console'),
    'x' * set_names.LONGEST,
]


@pytest.mark.parametrize(
    ('name', 'wrong'),
    [
        ('', 'it is empty'),
        ('../out', "it holds '/'"),
        ('a\\b', r"it holds '\\\\'"),
        ('a\nb', r"it holds '\\n'"),
        ('a\0', r"it holds '\\x00'"),
        ('a:b', "it holds ':'"),
        ('.hidden', 'it begins with a dot'),
        ('..', 'it begins with a dot'),
        ('NUL', 'Windows keeps it'),
        ('com1.de', 'Windows keeps it'),
        ('\udcff', 'it is not UTF-8'),
        ('x' * 151, 'it is longer than 150 bytes'),
        ('ä' * 76, 'it is longer than 150 bytes'),
    ],
)
def test_a_name_that_is_no_file_s_is_refused(name, wrong):
    with pytest.raises(UserError, match=wrong):
        set_names.check(['val', name])


@pytest.mark.parametrize('two', [('val', 'VAL'), ('ä', 'a\u0308'), ('Ä', 'ä')])
def test_names_that_are_not_kept_apart_are_refused(two):
    with pytest.raises(UserError, match='would have the same files'):
        set_names.check(two)


def test_files_of_other_names_can_be_written(tmp_path):
    set_names.check(GOOD)
    for name in GOOD:
        storage.write(outputs_path(tmp_path, name, 10**9, 1000), 'a\n')
    assert len(list((tmp_path / 'translations').iterdir())) == len(GOOD)


@pytest.fixture
def text(tmp_path):
    for name in ('train', 'val', 'Val'):
        for language in ('en', 'de'):
            (tmp_path / f'{name}.{language}').write_text('a b\n', encoding='utf-8')
    return f'text(path="{tmp_path.as_posix()}", source="en", target="de")'


@pytest.mark.skipif(sys.platform != 'linux', reason='capitals count in its folders')
def test_a_run_is_refused_before_its_text_is_tokenised(text, tmp_path, monkeypatch):
    monkeypatch.setenv('FLAXFORMER_LITE_CACHE', str(tmp_path / 'cache'))
    monkeypatch.setattr(setup.compilation, 'keep_programs', lambda: None)
    config = wmt_small.get_config()
    config.data = text
    for sets in ('', 'Val'):  # the dev set is watched by, whether or not it is chosen
        config.evaluation.sets = sets
        with pytest.raises(UserError, match="'val' and 'Val'|'Val' and 'val'"):
            typed_config = load.from_config_dict(config)
            screen = Screen(io.StringIO())
            setup.prepare(typed_config, tmp_path / 'run', screen, Stop())
    assert list((tmp_path / 'cache').iterdir()) == []


def test_a_set_that_is_scored_again_is_looked_at_too():
    sets = {'val': [('a', 'b')], 'a/b': [('a', 'b')]}
    assert set(chosen(sets, 'val,val', '--set')) == {'val'}
    with pytest.raises(UserError, match="'a/b' cannot be the name of a file"):
        chosen(sets, '', '--set')
