"""Tests of `describe --data` and `--write`."""

import pytest

from experiments import describe
from experiments.data import sources
from experiments.errors import UserError
from experiments.evaluation import overview

DATA = 'made(task="sort", longest=16, pairs=100)'


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


class WithEmptySet(Shared):
    def evaluation(self):
        return {**super().evaluation(), 'none': []}


def test_sizes_lengths_and_overlap_are_counted_in_one_pass():
    shared = WithEmptySet()
    lines = [line.split() for line in overview.text(shared).splitlines()]  # pyright: ignore
    assert shared.reads == 1
    assert ['train', '3', '1.667', '1.667', '2', '3', '-'] in lines
    assert ['val', '2', '1.5', '1', '2', '1', '1'] in lines
    assert ['test', '1', '3', '1', '3', '1', '0'] in lines
    assert ['none', '0', '-', '-', '-', '-', '0'] in lines
    assert 'filtered from training: 7 by duplicates'.split() in lines
    assert ['a', 'b'] in lines and ['x'] in lines


def test_written_data_are_read_back_as_text(tmp_path, command):
    folder = tmp_path / 'made'
    arguments = ['--config=wmt_small', f'--config.data={DATA}', f'--write={folder}']
    command(describe, *arguments)
    spec = f'text(path="{folder.as_posix()}", source="given", target="wanted")'
    again, data = sources.load(spec), sources.load(DATA)
    assert list(again.train()) == list(data.train())
    expected = {
        name: [(source, (target,)) for source, target in pairs]
        for name, pairs in data.evaluation().items()
    }
    assert again.evaluation() == expected
    with pytest.raises(UserError, match='made: already exists'):
        command(describe, *arguments)


def test_references_are_written_to_numbered_files_and_empty_sets_skipped(
    tmp_path, capsys
):
    overview.write(WithEmptySet(), tmp_path / 'set')  # pyright: ignore
    assert capsys.readouterr().err.startswith('warning: --write: skipped none')
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


@pytest.mark.parametrize(
    ('name', 'language'), [('../out/x', 'en'), ('HERE/x', 'en'), ('val', '/../y')]
)
def test_sets_are_never_written_outside_the_folder(tmp_path, name, language):
    class Elsewhere(Shared):
        source = language

        def evaluation(self):
            return {name.replace('HERE', str(tmp_path)): [('a', 'b')]}

    with pytest.raises(UserError, match='data: '):
        overview.write(Elsewhere(), tmp_path / 'set')  # pyright: ignore
    assert not list(tmp_path.iterdir())


def test_describe_prints_the_filtered_data(command):
    arguments = [f'--config.data={DATA}', '--data', '--config.filters=copies']
    out = command(describe, '--config=wmt_small', *arguments).out
    assert 'longer' in out and 'by copies' in out
