"""Tests of the command line; `test_rejected_input` has the table of its errors."""

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


def run_python(code, **options):
    return subprocess.run([sys.executable, '-c', code], **options)


def test_file_without_overrides_gets_defaults_for_omitted_fields(file):
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
        ('--noconfig.batch.packed', 'batch.packed', False),
        ('--config.data=text(path="a b/c")', 'data', 'text(path="a b/c")'),
        # Fields of the schema that the file omits
        ('--config.model.decoder.norm=rms', 'model.decoder.norm', 'rms'),
        ('--config.train.init_seed=3', 'train.init_seed', 3),
    ],
)
def test_override_is_converted_to_the_type_of_its_field(file, argument, field, value):
    settings = parse(file, argument)
    changed = flatten(settings.config.to_dict())[field]
    assert (changed, type(changed)) == (value, type(value))
    assert settings.overrides == {field: value}


def test_overrides_may_be_given_as_python_values(file):
    text = CONFIG.replace('.num_heads = 8', ".num_heads = '8'")  # of another type
    refers = '    config.model.d_ff = config.model.get_ref("d_k")\n    return config'
    file.write_text(text.replace('    return config', refers))
    values = {'model.d_k': 32, 'model.dropout': 0, 'model.num_heads': 2}
    settings = flags.settings(str(file), values | {'optimizer.name': 'lion'})
    assert settings.overrides == values | {'optimizer.name': 'lion', 'model.d_ff': 32}
    argv = [f'--config.{field}={value}' for field, value in settings.overrides.items()]
    assert flags.parse_overrides(argv) == settings.overrides
    for invalid in ({'model.d_ff': None}, {'model.num_head': 4}):
        with pytest.raises(UserError, match=r'model\.(d_ff|num_heads)'):
            flags.settings(str(file), invalid)


def test_only_values_that_differ_from_the_file_are_overrides(file):
    same_dropout = '--config.model.dropout=.1'
    settings = parse(file, '--config.model.num_heads=4', same_dropout)
    # The last of two counts.
    others = parse(file, '--config.model.num_heads=2', '--config.model.num_heads', '4')
    assert settings.overrides == others.overrides == {'model.num_heads': 4}


def test_commands_add_flags_to_the_config_fields(file, monkeypatch):
    monkeypatch.setenv('HOME', '/home/reader')
    parser = flags.Parser('Does x.\n\npython -m experiments.x --config=a b\n\nAnd y.')
    parser.add_argument('--workdir', type=Path)
    parser.add_argument('--text')
    # Values may begin like a flag.
    for text in ('-- he said', '--dryrun', '---'):
        assert parser.parse_args([f'--text={text}']).text == text
    with pytest.raises(UserError, match="--txt; did you mean '--text'"):
        parser.parse_args(['--txt'])
    with pytest.raises(UserError, match='python -m experiments.x --config=a b '):
        flags.parse(parser, [])
    parser = flags.Parser('test')
    parser.add_argument('--workdir', type=Path)
    argv = ['--workdir=~/x', '--config.model.num_heads=4']
    args, settings = flags.parse(parser, [f'--config={file}', *argv])
    assert args.workdir == Path('/home/reader/x')
    assert settings.overrides == {'model.num_heads': 4}


def test_shipped_configs_are_found_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ('configs/wmt_small.py', 'wmt_small.py', 'wmt_small'):
        assert parse(path).name == 'wmt_small'
    (tmp_path / 'wmt_small.py').write_text(CONFIG)
    assert parse('wmt_small.py').config.model.num_heads == 8


@pytest.mark.parametrize(
    ('code', 'message'),
    [
        ('def get_config():\n    return 1 / 0\n', 'bad.py:2: ZeroDivisionError'),
        ('def get_config(:\n', 'bad.py: SyntaxError.*line 1'),
        ('raise SystemExit(3)\n', 'bad.py:1: SystemExit: 3'),
        (
            'from ml_collections import ConfigDict\n'
            'def get_config():\n    return ConfigDict({1: 2})\n',
            "bad.py: unknown config field '1'",
        ),
        ('def get_config():\n    return {}\n', 'bad.py: no get_config'),
        ('def get_config():\n    return {"arms": {}}\n', 'bad.py: sweep file'),
    ],
)
def test_failing_config_file_is_named_with_its_line(tmp_path, code, message):
    (tmp_path / 'bad.py').write_text(code)
    with pytest.raises(UserError, match=message):
        parse(tmp_path / 'bad.py')


def test_help_lists_configs_fields_and_variants(capsys):
    with pytest.raises(SystemExit) as exit:
        flags.parse(flags.Parser('test'), ['--config=wmt_small', '--help'])
    out = capsys.readouterr().out
    assert exit.value.code == 0
    assert 'wmt_base, wmt_base_bf16, wmt_big, ' in out
    values = flatten(parse('wmt_small').config.to_dict())
    for name, field in schema.fields().items():
        shown = '(empty)' if values[name] in (None, '') else values[name]
        assert f'{name} {shown} · {field.help} [' in ' '.join(out.split())
    for kind in variants.FOLDERS:
        assert set(variants.names(kind)) <= set(out.replace(',', ' ').split())


def test_user_error_is_one_line_and_status_2(capsys):
    def run():
        raise UserError('num_heads=0:\nmust be at least 1')

    with pytest.raises(SystemExit) as exit:
        flags.main(run)
    assert exit.value.code == 2
    assert capsys.readouterr() == ('', 'error: num_heads=0: must be at least 1\n')


CONTROLS = '\x1b[2J\r\x07\x9b31m\x7f\u202e\u2066\ufffe'
ESCAPED = r'\x1b[2J\r\x07\x9b31m\x7f\u202e\u2066\ufffe'
PRINTS_CONTROLS = f"""
from experiments.command_line import console, flags
from experiments.errors import warn

def run():
    warn({CONTROLS!a})
    print({CONTROLS!a}, 'ü\u200d', sep='\t')
    console.print_data({CONTROLS!a})
    raise flags.UserError({CONTROLS!a})

flags.main(run)
"""


def test_control_characters_are_escaped_except_in_data_for_programs():
    done = run_python(PRINTS_CONTROLS, capture_output=True)
    assert done.stdout.decode() == f'{ESCAPED}\tü\u200d\n{CONTROLS}\n'
    one_line = ESCAPED.replace(r'\r', ' ')
    expected = [f'warning: {one_line}', f'error: {one_line}']
    assert done.stderr.decode().splitlines() == expected


@pytest.mark.skipif(os.name != 'posix', reason='needs a pseudo-terminal')
def test_data_on_a_terminal_are_escaped():
    parent, child = os.openpty()
    run_python(PRINTS_CONTROLS, stdout=child, stderr=subprocess.DEVNULL)
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


def test_help_of_every_command_imports_no_slow_packages():
    names = [command.split()[-1] for command, _ in overview.summaries()]
    assert len(names) >= 11
    names.append(overview.__name__)
    command = [sys.executable, '-c', HELP_OF_ALL, *names]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert done.stderr.split() == names


def test_package_lists_every_command_with_its_summary(command):
    _, _, *rows = command(overview).out.splitlines()
    listed = dict(re.split('  +', row, maxsplit=1) for row in rows)
    surface = Path(flags.PROJECT, 'tests/surface.txt').read_text('utf-8')
    names = re.findall(r'^command (\S+)$', surface, re.MULTILINE)
    modules = [name if '.' in name else f'experiments.{name}' for name in names]
    assert list(listed) == [f'python -m {module}' for module in modules]
    for name in modules:
        summary = importlib.import_module(name).__doc__.splitlines()[0]
        assert listed[f'python -m {name}'] == summary
    with pytest.raises(UserError, match='run, as in python -m experiments.run'):
        command(overview, 'run')


@pytest.mark.skipif(os.name != 'posix', reason='pipes end otherwise')
def test_closed_output_pipe_exits_with_status_1_and_no_message():
    code = (
        'from experiments.command_line import flags\n'
        'flags.main(lambda: [print("line", flush=True) for _ in range(100_000)])\n'
    )
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with subprocess.Popen([sys.executable, '-c', code], **pipes) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b''
        assert process.wait() == 1


@pytest.mark.skipif(not os.path.exists('/dev/full'), reason='needs a full disk')
@pytest.mark.parametrize('size', [3, 100_000], ids=['at_exit', 'while_printing'])
def test_output_on_a_full_disk_is_a_user_error(size):
    code = (
        'from experiments.command_line import flags\n'
        f'flags.main(lambda: print("x" * {size}))\n'
    )
    with open('/dev/full', 'w') as full:
        done = run_python(code, stdout=full, stderr=subprocess.PIPE, text=True)
    expected = 'error: cannot write standard output: No space left on device\n'
    assert (done.returncode, done.stderr) == (2, expected)


def test_missing_package_is_named_with_its_extra():
    flags.require_packages('--to=x', ['json'], 'export')
    message = r'--to=x needs nowhere: pip install -e "\.\[export'
    with pytest.raises(UserError, match=message):
        flags.require_packages('--to=x', ['json', 'nowhere'], 'export')


def test_tab_key_completes_names_of_components(tmp_path):
    typed = 'python -m experiments.run --config.model.decoder.norm='
    request = {
        '_ARGCOMPLETE': '2',
        'IFS': '\n',
        'COMP_LINE': typed,
        'COMP_POINT': str(len(typed)),
        '_ARGCOMPLETE_COMP_WORDBREAKS': ' =',
        '_ARGCOMPLETE_STDOUT_FILENAME': str(tmp_path / 'answer'),
    }
    command = [sys.executable, '-m', 'experiments.run']
    subprocess.run(command, env=os.environ | request, check=True)
    answer = (tmp_path / 'answer').read_text().split()
    assert set(answer) == set(variants.names('norm'))


def test_python_file_next_to_a_missing_config_json_is_not_executed(tmp_path):
    (tmp_path / 'config.json.py').write_text('raise AssertionError')
    with pytest.raises(UserError, match='file not found'):
        flags.find(str(tmp_path / 'config.json'))
