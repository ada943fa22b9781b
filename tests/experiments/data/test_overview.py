"""Tests of `describe --data` and `--write`."""

import sys

import pytest

from experiments import describe
from experiments.data import sources
from experiments.errors import UserError
from experiments.evaluation import overview

DATA = 'made(task="sort", longest=16, pairs=100)'


def run(monkeypatch, *arguments):
    argv = ['describe', '--config=wmt_small', *arguments]
    monkeypatch.setattr(sys, 'argv', argv)
    describe.main()


class Shared:
    """A source whose sets overlap with training, with several references."""

    source, target = 'en', 'de'
    left_out = {'duplicates': 7}
    reads = 0

    def train(self):
        self.reads += 1
        return iter([('a b', 'x'), ('c', 'y z z'), ('a b', 'w')])

    def evaluation(self):
        return {'val': [('a b', ('x', 'v')), ('d', ('u',))], 'test': [('e f g', 't')]}


def test_sizes_lengths_and_overlap_are_counted_in_one_pass():
    shared = Shared()
    lines = [line.split() for line in overview.text(shared).splitlines()]  # pyright: ignore
    assert shared.reads == 1
    assert ['train', '3', '1.667', '1.667', '2', '3', '-'] in lines
    assert ['val', '2', '1.5', '1', '2', '1', '1'] in lines
    assert ['test', '1', '3', '1', '3', '1', '0'] in lines
    assert 'filtered from training: 7 by duplicates'.split() in lines
    assert ['a', 'b'] in lines and ['x'] in lines


class OneEmpty(Shared):
    def evaluation(self):
        return {**super().evaluation(), 'none': []}


def test_an_empty_set_is_counted_and_not_written(tmp_path, capsys):
    lines = [line.split() for line in overview.text(OneEmpty()).splitlines()]  # pyright: ignore
    assert ['none', '0', '-', '-', '-', '-', '0'] in lines
    overview.write(OneEmpty(), tmp_path / 'out')  # pyright: ignore
    assert capsys.readouterr().err == (
        'warning: --write: skipped none, which has no sentences\n'
    )
    again = sources.load(f'text(path="{tmp_path}/out", source="en", target="de")')
    assert list(again.evaluation()) == ['val', 'test']


def test_written_data_is_read_back_as_text(tmp_path, monkeypatch):
    folder = tmp_path / 'made'
    run(monkeypatch, f'--config.data={DATA}', f'--write={folder}')
    again = sources.load(
        f'text(path="{folder.as_posix()}", source="given", target="wanted")'
    )
    data = sources.load(DATA)
    assert list(again.train()) == list(data.train())
    expected = {
        name: [(source, (target,)) for source, target in pairs]
        for name, pairs in data.evaluation().items()
    }
    assert again.evaluation() == expected
    with pytest.raises(UserError, match='made: already exists'):
        run(monkeypatch, f'--config.data={DATA}', f'--write={folder}')


def test_further_references_are_files_with_blank_lines(tmp_path):
    overview.write(Shared(), tmp_path / 'set')  # pyright: ignore
    files = {x.name: x.read_text('utf-8') for x in (tmp_path / 'set').iterdir()}
    assert files == {
        'train.en': 'a b\nc\na b\n',
        'train.de': 'x\ny z z\nw\n',
        'val.en': 'a b\nd\n',
        'val.de': 'x\nu\n',
        'val.de.1': 'v\n\n',
        'test.en': 'e f g\n',
        'test.de': 't\n',
    }


@pytest.mark.parametrize('name', ['../out/x', '/x'])
def test_a_set_is_not_written_to_another_folder(tmp_path, name):
    class Elsewhere(Shared):
        def evaluation(self):
            return {f'{tmp_path}{name}' if name == '/x' else name: [('a', 'b')]}

    source = Elsewhere()
    with pytest.raises(UserError, match='data: .*x.en'):
        overview.write(source, tmp_path / 'set')  # pyright: ignore
    source.source = '/../y'
    with pytest.raises(UserError, match='data: .*/y'):
        overview.write(source, tmp_path / 'set')  # pyright: ignore
    assert not list(tmp_path.iterdir())


def test_a_config_prints_its_data(monkeypatch, capsys):
    run(monkeypatch, f'--config.data={DATA}', '--data', '--config.filters=copies')
    printed = capsys.readouterr().out
    assert 'set' in printed and 'longer' in printed and 'by copies' in printed
