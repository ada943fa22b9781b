"""Tests of the command line."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import __main__ as overview
from experiments.command_line import flags
from experiments.config import schema
from experiments.config.load import flatten
from experiments.errors import UserError
from flaxformer_lite.config import variants

CONFIG = """
from ml_collections import config_dict

def get_config():
    config = config_dict.ConfigDict()
    config.data = 'grammar'
    config.model = config_dict.ConfigDict()
    config.model.num_heads = 8
    config.model.dropout = 0.1
    config.model.d_k = config_dict.placeholder(int)
    config.batch = config_dict.ConfigDict()
    config.batch.packed = True
    return config
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / 'small.py'
    path.write_text(CONFIG)
    return path


def parse(file, *arguments):
    return flags.parse(flags.Parser('test'), [f'--config={file}', *arguments])[1]


def test_without_overrides_it_is_the_file_s_config(file):
    settings = parse(file)
    assert settings.name == 'small'
    assert settings.overrides == {}
    given = {
        'data': 'grammar',
        'model.num_heads': 8,
        'model.dropout': 0.1,
        'model.d_k': None,
        'batch.packed': True,
    }
    defaults = flatten(schema.ExperimentConfig().to_dict())
    assert flatten(settings.config.to_dict()) == defaults | given


@pytest.mark.parametrize(
    ('argument', 'field', 'value'),
    [
        ('--config.model.num_heads=4', 'model.num_heads', 4),
        ('--config.model.d_k=64', 'model.d_k', 64),
        ('--config.batch.packed=false', 'batch.packed', False),
        ('--noconfig.batch.packed', 'batch.packed', False),
        (
            '--config.data=text(path="a b/c", source="en")',
            'data',
            'text(path="a b/c", source="en")',
        ),
        # The file has none of these: they are the schema's.
        ('--config.model.decoder.norm=rms', 'model.decoder.norm', 'rms'),
        ('--config.train.init_seed=3', 'train.init_seed', 3),
    ],
)
def test_an_override_has_its_field_s_type(file, argument, field, value):
    settings = parse(file, argument)
    changed = flatten(settings.config.to_dict())[field]
    assert (changed, type(changed)) == (value, type(value))
    assert settings.overrides == {field: value}


def test_overrides_are_values(file):
    text = CONFIG.replace('.num_heads = 8', ".num_heads = '8'")  # of another type
    refers = '    config.model.d_ff = config.model.get_ref("d_k")\n    return config'
    file.write_text(text.replace('    return config', refers))
    values = {'model.d_k': 32, 'model.dropout': 0, 'model.num_heads': 2}
    settings = flags.settings(str(file), values | {'optimizer.name': 'lion'})
    assert settings.overrides == values | {'optimizer.name': 'lion', 'model.d_ff': 32}
    assert settings.config.model.d_ff == 32  # the file gives it as d_k
    argv = [f'--config.{field}={value}' for field, value in settings.overrides.items()]
    assert flags.parse_overrides(argv) == settings.overrides
    assert flags.parse_overrides([]) == {}
    with pytest.raises(UserError, match='^model.d_ff must be of type int, not None$'):
        flags.settings(str(file), {'model.d_ff': None})
    with pytest.raises(UserError, match='model.num_head.*did you mean'):
        flags.settings(str(file), {'model.num_head': 4})


def test_only_what_differs_from_the_file_counts_and_in_no_order(file):
    some = parse(
        file,
        '--config.model.num_heads=4',
        '--config.model.dropout=.1',
        '--config.data=x',
    )
    # The last of two counts.
    same = parse(
        file, '--config.data=y', '--config.data', 'x', '--config.model.num_heads', '4'
    )
    assert some.overrides == same.overrides == {'data': 'x', 'model.num_heads': 4}


@pytest.mark.parametrize(
    ('argument', 'message'),
    [
        (
            '--config.model.num_head=4',
            "unknown config field 'model.num_head'; did you mean 'model.num_heads'?",
        ),
        ('--config.num_heads=4', "did you mean 'model.num_heads'?"),
        ('--config.model=4', "field 'model'; it is a section with the fields model.ar"),
        ('--noconfig', "unknown flag --noconfig; did you mean '--config'"),
        ('--noconfig.model.num_heads', "Unknown .* 'noconfig.model.num_heads'. Did"),
        (
            '--config.model.num_heads=-4',
            'model.num_heads must be at least 1 and at most 65536, not -4',
        ),
        ('-x', 'unknown flag -x$'),
        (
            '--config.model.num_heads=abc',
            "^model.num_heads must be int, from 1 to 65536, not 'abc'$",
        ),
        (
            '--config.train.log_every=a=b: c',
            "train.log_every must be int, at least 1, not 'a=b: c'$",
        ),
        ('--config.batch.packed=maybe', "batch.packed must be bool, not 'maybe'"),
        ('--config.model.num_heads', 'Missing value for flag --config.model.num_heads'),
        (
            '--confg.model.num_heads=4',
            "--confg.model.num_heads; did you mean '--config.model.num_heads'",
        ),
        ('--train.steps=5', "flag --train.steps; did you mean '--config.train.steps'"),
        ('--config.workdir=x', "field 'workdir'; did you mean '--workdir'"),
        ('model.num_heads=4', "unexpected argument 'model.num_heads=4'"),
    ],
)
def test_a_wrong_override_is_named(file, argument, message):
    with pytest.raises(UserError, match=message):
        parse(file, argument)


def test_the_command_s_own_flags(file):
    parser = flags.Parser('test')
    parser.add_argument('--workdir')
    args, settings = flags.parse(
        parser, ['--workdir=a', f'--config={file}', '--config.model.num_heads=4']
    )
    assert args.workdir == 'a'
    assert settings.overrides == {'model.num_heads': 4}


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (
            ['--workdr=a', '--config=x'],
            "unknown flag --workdr; did you mean '--workdir'",
        ),
        (['--cofig=x'], "unknown flag --cofig; did you mean '--config'"),
        (
            ['--worker', '2', '--config=x'],
            "unknown flag --worker; did you mean '--workdir'",
        ),
        (['--zzz', '--config=x'], 'unknown flag --zzz$'),
        ([], '--config, as in python -m experiments.x --config=a b '),
    ],
)
def test_what_was_meant_is_said_before_what_is_missing(arguments, message):
    parser = flags.Parser('Does x.\n\npython -m experiments.x --config=a b\n\nAnd y.')
    parser.add_argument('--workdir')
    with pytest.raises(UserError, match=message):
        flags.parse(parser, arguments)


def test_a_command_without_a_config_knows_its_flags_too():
    parser = flags.Parser('test')
    parser.add_argument('--dry_run', action='store_true')
    parser.add_argument('--text')
    with pytest.raises(
        UserError, match="unknown flag --dryrun; did you mean '--dry_run'"
    ):
        parser.parse_args(['--dryrun'])
    # A value that begins like a flag, and one that is written beside it.
    assert parser.parse_args(['--text', '-- he said']).text == '-- he said'
    assert parser.parse_args(['--text=--dryrun']).text == '--dryrun'
    assert parser.parse_args(['--text=---']).text == '---'


def test_the_project_s_configs_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ('configs/wmt_small.py', 'wmt_small.py', 'wmt_small'):
        assert parse(path).name == 'wmt_small'
    for path in ('wmt_smal', 'configs/wmt_smal.py'):
        with pytest.raises(
            UserError, match=f"{path}: file not found; did you mean 'wmt_small'"
        ):
            parse(path)
    (tmp_path / 'wmt_small.py').write_text(CONFIG)
    assert parse('wmt_small.py').config.model.num_heads == 8


@pytest.mark.parametrize(
    ('code', 'message'),
    [
        ('def get_config():\n    return 1 / 0\n', 'bad.py:2: ZeroDivisionError'),
        (
            'import json\ndef get_config():\n    json.loads("{")\n',
            'bad.py:3: JSONDecodeError',
        ),
        ('def get_config(:\n', 'bad.py: SyntaxError.*line 1'),
        ('import nowhere\n', 'bad.py:1: ModuleNotFoundError.*nowhere'),
        ('raise SystemExit(3)\n', 'bad.py:1: SystemExit: 3'),
        ('raise BaseException("odd")\n', 'bad.py:1: BaseException: odd'),
        (
            'from ml_collections import ConfigDict\n'
            'def get_config():\n    return ConfigDict({1: 2})\n',
            "bad.py: unknown config field '1'",
        ),
        ('config = {}\n', 'no get_config.. that returns a ConfigDict. Define it'),
        ('def get_config():\n    return {}\n', 'returns a ConfigDict'),
        (
            'def get_config():\n    return {"arms": {}}\n',
            'bad.py: sweep file, not .* Run it with .*experiments.sweep --config=.*bad',
        ),
    ],
)
def test_a_config_file_that_fails_is_named_with_the_line(tmp_path, code, message):
    (tmp_path / 'bad.py').write_text(code)
    with pytest.raises(UserError, match=message):
        parse(tmp_path / 'bad.py')


@pytest.mark.parametrize('given', [[], ['--config=wmt_small']], ids=['alone', 'config'])
def test_help_names_configs_fields_and_variants(given, capsys):
    with pytest.raises(SystemExit) as exit:
        flags.parse(flags.Parser('test'), [*given, '--help'])
    out = capsys.readouterr().out
    assert exit.value.code == 0
    assert 'wmt_base, wmt_base_bf16, wmt_big, ' in out
    described = ' '.join(out.split())
    values = flatten(parse('wmt_small' if given else 'wmt_base').config.to_dict())
    for name, field in schema.fields().items():
        shown = '(empty)' if values[name] in (None, '') else values[name]
        assert f'{name} {shown} · {field.help} [' in described
    assert 'matrices are shared [all, decoder, source_target, none]' in described
    words = set(out.replace(',', ' ').split())
    for kind in variants.FOLDERS:
        assert set(variants.names(kind)) <= words
    assert {'grammar', 'text', 'tfds'} <= words
    assert max(map(len, out.splitlines())) <= 88


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--config='], '--config=: file not found'),
        (['--config=' + 'x/' * 5000], 'file not found'),
        (['--config'], 'argument --config: expected one argument'),
        (['--config=nowhere', '--help'], '--config=nowhere: file not found'),
    ],
)
def test_a_path_that_names_no_config_is_refused(arguments, message):
    with pytest.raises(UserError, match=re.escape(message)):
        flags.parse(flags.Parser('test'), arguments)


def test_a_mistake_is_one_line_and_a_status(capsys):
    def run():
        raise UserError('num_heads=0:\nmust be at least 1')

    with pytest.raises(SystemExit) as exit:
        flags.main(run)
    assert exit.value.code == 2
    assert capsys.readouterr() == ('', 'error: num_heads=0: must be at least 1\n')


CONTROLS = '\x1b[2J\r\x07\x9b31m\x7f\u202e\u2066\ufffe'
ESCAPED = r'\x1b[2J\r\x07\x9b31m\x7f\u202e\u2066\ufffe'
LINE = ESCAPED.replace(r'\r', ' ')  # its line ends are spaces
OF_OTHERS = f"""
from experiments.command_line import console, flags
from experiments.errors import warn

def run():
    warn({CONTROLS!a})
    print({CONTROLS!a}, 'ü\u200d', sep='\t')
    console.print_data({CONTROLS!a})
    raise {{error}}

flags.main(run)
"""


@pytest.mark.parametrize(
    ('error', 'said'),
    [
        (f'flags.UserError({CONTROLS!a})', [f'error: {LINE}']),
        ('SystemExit', []),
    ],
)
def test_control_characters_are_shown_as_escapes(error, said):
    command = [sys.executable, '-c', OF_OTHERS.format(error=error)]
    done = subprocess.run(command, capture_output=True)
    # A program gets data as they are.
    printed = f'{ESCAPED}\tü\u200d\n{CONTROLS}\n'
    assert done.stdout.decode() == printed
    assert done.stderr.decode().splitlines() == [f'warning: {LINE}', *said]


@pytest.mark.skipif(os.name != 'posix', reason='needs a pseudo-terminal')
def test_a_terminal_gets_data_with_escapes():
    parent, child = os.openpty()
    command = [sys.executable, '-c', OF_OTHERS.format(error='SystemExit')]
    subprocess.run(command, stdout=child, stderr=subprocess.DEVNULL, check=True)
    os.close(child)
    shown = os.read(parent, 1000).decode()
    os.close(parent)
    assert shown == f'{ESCAPED}\tü\u200d\r\n{ESCAPED}\r\n'


HELP_OF_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    sys.argv = [name, '--help']
    try:
        importlib.import_module(name).main()
    except SystemExit:
        found = {'jax', 'flax', 'altair', 'scipy', 'tensorflow'} & set(sys.modules)
        print(name, *found, file=sys.stderr)
"""


def test_flags_and_help_are_read_without_what_takes_long_to_import():
    names = [command.split()[-1] for command, _ in overview.summaries()]
    assert len(names) >= 11
    found = subprocess.run(
        [sys.executable, '-c', HELP_OF_ALL, *names],
        capture_output=True,
        check=True,
        text=True,
    )
    assert found.stderr.split() == names


def test_the_package_lists_every_command_and_its_summary():
    command = [sys.executable, '-X', 'importtime', '-m', 'experiments']
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    _, _, *rows = done.stdout.splitlines()
    listed = dict(re.split('  +', row, maxsplit=1) for row in rows)
    surface = Path(flags.PROJECT, 'tests/surface.txt').read_text('utf-8')
    names = re.findall(r'^command (\S+)$', surface, re.MULTILINE)
    modules = [name if '.' in name else f'experiments.{name}' for name in names]
    assert list(listed) == [f'python -m {module}' for module in modules]
    for name in modules:
        summary = importlib.import_module(name).__doc__.splitlines()[0]
        assert listed[f'python -m {name}'] == summary
    assert not re.search(r'\| +jax$', done.stderr, re.MULTILINE)


def test_the_package_is_no_command_with_subcommands():
    command = [sys.executable, '-m', 'experiments', 'run']
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert 'run, as in python -m experiments.run' in done.stderr


@pytest.mark.skipif(os.name != 'posix', reason='pipes end otherwise')
def test_a_reader_that_has_seen_enough_is_no_error():
    code = (
        'from experiments.command_line import flags\n'
        'flags.main(lambda: [print("line", flush=True) for _ in range(100_000)])\n'
    )
    command = [sys.executable, '-c', code]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b''
        assert process.wait() == 1


@pytest.mark.skipif(not os.path.exists('/dev/full'), reason='needs a full disk')
@pytest.mark.parametrize('unbuffered', ['', '1'])
@pytest.mark.parametrize('size', [3, 100_000])
def test_output_on_a_full_disk_is_one_line(unbuffered, size):
    code = (
        'from experiments.command_line import flags\n'
        f'flags.main(lambda: print("x" * {size}))\n'
    )
    with open('/dev/full', 'w') as full:
        done = subprocess.run(
            [sys.executable, '-c', code],
            stdout=full,
            stderr=subprocess.PIPE,
            env=os.environ | {'PYTHONUNBUFFERED': unbuffered},
            text=True,
        )
    said = 'error: cannot write standard output: No space left on device\n'
    assert (done.returncode, done.stderr) == (2, said)


def test_a_directory_is_a_path_on_a_disk(monkeypatch):
    parser = flags.Parser('test')
    parser.add_argument('--workdir', type=Path)
    with pytest.raises(UserError, match='argument --workdir: is empty'):
        parser.parse_args(['--workdir='])
    with pytest.raises(UserError, match='--workdir: gs://b/x is a URL. Pass'):
        parser.parse_args(['--workdir=gs://b/x'])
    monkeypatch.setenv('HOME', '/home/reader')
    assert parser.parse_args(['--workdir=~/x']).workdir == Path('/home/reader/x')


def test_a_package_that_is_missing_is_named_with_its_extra():
    flags.require_packages('--to=x', ['json'], 'export')
    with pytest.raises(
        UserError, match=r'--to=x needs nowhere: pip install -e "\.\[ex'
    ):
        flags.require_packages('--to=x', ['json', 'nowhere'], 'export')


@pytest.mark.parametrize(
    ('typed', 'expected'),
    [
        ('--config.model.num_h', {'--config.model.num_heads'}),
        ('--config.model.decoder.norm=', set(variants.names('norm'))),
        ('--config.train.loss=fo', {'focal'}),
        ('--config=configs/wmt_small.py --workdir=x --dry', {'--dry_run'}),
    ],
)
def test_the_tab_key_completes_flags_fields_and_names(typed, expected, tmp_path):
    command = f'python -m experiments.run {typed}'
    answer = tmp_path / 'answer'
    asked = {
        '_ARGCOMPLETE': '2',
        'IFS': '\n',
        'COMP_LINE': command,
        'COMP_POINT': str(len(command)),
        '_ARGCOMPLETE_COMP_WORDBREAKS': ' =',
        '_ARGCOMPLETE_STDOUT_FILENAME': str(answer),
    }
    subprocess.run(
        [sys.executable, '-m', 'experiments.run'], env=os.environ | asked, check=True
    )
    assert {word.strip() for word in answer.read_text().splitlines()} == expected


def test_python_in_place_of_the_config_of_a_run_is_not_run(tmp_path):
    (tmp_path / 'config.json.py').write_text('raise AssertionError')
    with pytest.raises(UserError, match='file not found'):
        flags.find(str(tmp_path / 'config.json'))
