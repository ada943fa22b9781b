"""`experiments.convert --to`: all of a folder or nothing, and nothing harmed."""

import sys

import pytest

from experiments import convert
from experiments.conversion import export
from experiments.conversion.trained import Trained
from experiments.errors import UserError


@pytest.fixture
def formats(monkeypatch):
    """Formats that write a file, that refuse, and that fail while they write."""

    def good(trained):
        return lambda folder: (folder / 'model').write_text('whole', 'utf-8')

    def refuses(trained):
        raise UserError('model.norm=scale is not known')

    def fails(trained):
        def write(folder):
            (folder / 'model').write_text('half', 'utf-8')
            raise UserError('no space')

        return write

    found = {'huggingface': good, 'ctranslate2': refuses, 'stablehlo': fails}
    monkeypatch.setattr(export, 'FORMATS', found)
    monkeypatch.setattr(
        export.trained, 'read', lambda path: Trained(None, None, None, None)
    )


def convert_to(monkeypatch, *arguments):
    monkeypatch.setattr(sys, 'argv', ['convert', 'run', *map(str, arguments)])
    convert.main()


def test_a_folder_appears_whole(tmp_path, formats, monkeypatch, capsys):
    out = tmp_path / 'new' / 'out'
    convert_to(monkeypatch, '--to=huggingface', f'--out={out}')
    assert [path.name for path in out.iterdir()] == ['model']
    assert capsys.readouterr().out == f'{out}: run for huggingface\n'
    assert [path.name for path in out.parent.iterdir()] == ['out']


def test_an_empty_folder_is_filled_and_another_one_is_never_touched(
    tmp_path, formats, monkeypatch
):
    out = tmp_path / 'out'
    out.mkdir()
    convert_to(monkeypatch, '--to=huggingface', f'--out={out}')
    (out / 'model').write_text('mine', 'utf-8')
    with pytest.raises(UserError, match='is there already: give a new folder'):
        convert_to(monkeypatch, '--to=huggingface', f'--out={out}')
    with pytest.raises(UserError, match='is there already: give a new folder'):
        convert_to(monkeypatch, '--to=huggingface', f'--out={out / "model"}')
    assert (out / 'model').read_text('utf-8') == 'mine'


@pytest.mark.parametrize(
    ('to', 'words'), [('ctranslate2', 'model.norm=scale'), ('stablehlo', 'no space')]
)
def test_what_fails_leaves_nothing(tmp_path, formats, monkeypatch, to, words):
    with pytest.raises(UserError, match=words):
        convert_to(monkeypatch, f'--to={to}', f'--out={tmp_path / "out"}')
    assert not list(tmp_path.iterdir())


def test_quantization_is_of_one_format(tmp_path, formats, monkeypatch):
    with pytest.raises(UserError, match='--quantization=int8 is for --to=ctranslate2'):
        convert_to(
            monkeypatch,
            '--to=huggingface',
            f'--out={tmp_path / "out"}',
            '--quantization=int8',
        )


def test_the_command_offers_every_format():
    assert sorted(convert.FORMATS) == sorted(export.FORMATS)


@pytest.mark.parametrize(
    'given',
    [
        (),
        ('--out=x',),
        ('--to=stablehlo',),
        ('--to=stablehlo', '--out=x', '--workdir=y'),
        ('--workdir=y', '--quantization=int8'),
    ],
)
def test_a_checkpoint_becomes_a_run_or_a_run_is_written(given, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match='takes --'):
        convert_to(monkeypatch, *given)
    assert not any(tmp_path.iterdir())
