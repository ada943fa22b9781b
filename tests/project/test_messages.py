"""Tests that messages and docstrings name flags, fields and commands that exist."""

import ast
import functools
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

from experiments import __main__ as overview
from experiments.command_line import flags
from experiments.config import schema

ROOT = Path(__file__).parents[2]
PACKAGES = 'experiments flaxformer_lite packages/flaxformer_*'.split()
FILES = sorted(
    file
    for package in PACKAGES
    for folder in ROOT.glob(package)
    for file in folder.rglob('*.py')
)
FLAG = re.compile(r'(?<![\w-])--(?:no)?([a-z]\w*)((?:\.[\w…]+)*)')
COMMAND = re.compile(r'python -m ((?:experiments|flaxformer_\w+)(?:\.\w+)+)(.*)')
# Flags of git, XLA and `hf`, and the placeholder `--flag`.
OTHERS = re.compile('error|flag|local|porcelain|untracked|xla_\\w+')


class Parsed(Exception):
    """Raised once a command has made its parser."""


@pytest.fixture(scope='module')
def flags_of():
    """Returns the flags of each command."""

    def stop(parser, *_):
        raise Parsed(parser)

    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flags.Parser, 'parse_known_args', stop)
        for command in (line.split()[-1] for line, _ in overview.summaries()):
            with pytest.raises(Parsed) as parsed:
                importlib.import_module(command).main()
            known = parsed.value.args[0]._option_string_actions
            found[command] = {name.removeprefix('--') for name in known}
    return found


@functools.cache
def parsed(file):
    return ast.parse(file.read_text('utf-8'))


def texts(file):
    """Returns the string literals of a file, with `…` for the values of f-strings."""
    tree = parsed(file)
    parts = set()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts.update(map(id, node.values))
            values = [getattr(value, 'value', None) for value in node.values]
            found.append(''.join(x if isinstance(x, str) else '…' for x in values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in parts:
                found.append(node.value)
    return found


def unknown_flags(text, known):
    """Returns the flags and overridden fields in a text that don't exist."""
    fields = {*schema.fields(), *schema.sections(), 'a.b'}  # an example
    found = []
    for flag in FLAG.finditer(text):
        name, field = flag[1], flag[2].removeprefix('.')
        if name == 'config' and field:
            exists = field in fields or '…' in field
        else:
            exists = name in known or OTHERS.fullmatch(name)
        if not exists:
            found.append(flag[0])
    return found


def test_messages_name_existing_flags_and_commands(flags_of):
    problems = []
    all_flags = set().union(*flags_of.values())
    for file in FILES:
        # A command advises only its own flags.
        known = flags_of.get(f'{file.parent.name}.{file.stem}', all_flags)
        for text in texts(file):
            found = unknown_flags(COMMAND.sub('', text), known)
            for module, rest in COMMAND.findall(text):
                if importlib.util.find_spec(module) is None:
                    found.append(module)
                found += unknown_flags(rest, flags_of.get(module, ()))
            problems += [f'{file.relative_to(ROOT)}: {name}' for name in found]
    assert problems == []


def is_error_of_input(node):
    error = getattr(node, 'exc', None)
    name = getattr(getattr(error, 'func', None), 'id', '')
    return name in ('UserError', 'ValueError', 'TypeError')


def test_errors_of_the_library_name_neither_config_fields_nor_deep_modules():
    deep = re.compile(r'\bmodel\.(?!init)\w|flaxformer_lite\.\w+\.')
    problems = []
    for file in (x for x in FILES if x.is_relative_to(ROOT / 'flaxformer_lite')):
        for node in ast.walk(parsed(file)):
            if is_error_of_input(node):
                parts = [getattr(x, 'value', None) for x in ast.walk(node.exc)]
                if any(isinstance(x, str) and deep.search(x) for x in parts):
                    problems.append(f'{file.relative_to(ROOT)}:{node.lineno}')
    assert problems == []


def test_error_messages_are_one_line():
    problems = []
    for file in FILES:
        for node in ast.walk(parsed(file)):
            if is_error_of_input(node):
                message = ''.join(
                    part.value
                    for argument in node.exc.args
                    for part in ast.walk(argument)
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                )
                if '\n' in message:
                    problems.append(f'{file.relative_to(ROOT)}:{node.lineno}')
    assert problems == []
