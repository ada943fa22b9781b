"""Who may import whom, by reading every file."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIBRARY = 'flaxformer_lite'
KINDS = ('attention', 'positions', 'norms', 'residual', 'feed_forward')
# What parts are made of; they know nothing of the parts.
GROUND = {'shapes', 'ranges'}
INIT = {'init.base', 'init.xavier'}
MAY_IMPORT = {
    'spec': {'ranges'},
    'dropout': {'ranges'},
    'dense': INIT,
    'stack': {'shapes', 'dense', 'dropout'},
    'entity_encoder': {'shapes', 'dense', 'stack'},
    'text': {'shapes'},
    'architectures': {'shapes', 'ranges', 'text', 'dense', 'dropout', 'stack'},
    'multi_head': {'shapes', 'dense', 'dropout'},
    'decode': {'shapes'},
    'losses': {'dense', 'shapes'},
    'schedules': {'spec', 'ranges'},
}


def files(folder):
    return sorted((ROOT / folder).rglob('*.py'))


def name(path):
    """`flaxformer_lite/norms/rms.py` → `flaxformer_lite.norms.rms`."""
    return '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix(
        '.__init__'
    )


def imported(path):
    """Every module that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text('utf-8'))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f'{path}: a relative import'
            modules = [f'{node.module}.{alias.name}' for alias in node.names]
            yield from (m if is_module(m) else node.module for m in modules)


def is_module(dotted):
    path = ROOT.joinpath(*dotted.split('.'))
    return path.is_dir() or path.with_suffix('.py').is_file()


def library_parts(path):
    """What a file imports of the library, without the library's name."""
    return {
        m.removeprefix(f'{LIBRARY}.')
        for m in imported(path)
        if m.startswith(f'{LIBRARY}.')
    }


every_library_file = pytest.mark.parametrize('path', files(LIBRARY), ids=name)


@every_library_file
def test_the_library_needs_jax_flax_and_optax_and_nothing_else(path):
    roots = {module.split('.')[0] for module in imported(path)}
    assert roots <= {LIBRARY, 'jax', 'flax', 'optax'} | sys.stdlib_module_names


@every_library_file
def test_the_library_touches_no_files_flags_or_console(path):
    tree = ast.parse(path.read_text('utf-8'))
    called = {
        n.func.id
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    assert not called & {'open', 'print', 'input'}
    assert not set(imported(path)) & {
        'os',
        'io',
        'sys',
        'pathlib',
        'argparse',
        'logging',
        'time',
    }


@every_library_file
def test_parts_import_only_what_they_may(path):
    module = name(path).removeprefix(f'{LIBRARY}.')
    parts = library_parts(path)
    if module in GROUND:
        allowed = set()
    elif module.split('.')[0] in KINDS:
        kind = module.split('.')[0]
        own = {p for p in parts if p.startswith(f'{kind}.')}
        allowed = {'shapes', 'ranges', 'dense', 'dropout', *own}
    elif module.split('.')[0] in MAY_IMPORT:
        folder = module.split('.')[0]
        allowed = MAY_IMPORT[folder] | {p for p in parts if p.startswith(f'{folder}.')}
    else:
        # Only specs name a variant, so no other file imports one.
        allowed = {p for p in parts if p.split('.')[0] not in KINDS}
    assert parts <= allowed, f'{name(path)} may not import {parts - allowed}'


@every_library_file
def test_only_spec_imports_by_name(path):
    by_name = {
        m
        for m in imported(path)
        if m.split('.')[0] in ('importlib', 'pkgutil', 'runpy')
    }
    called = '__import__' in path.read_text('utf-8')
    assert name(path) == f'{LIBRARY}.spec' or not (by_name or called)


@pytest.mark.parametrize('path', [*files(LIBRARY), *files('experiments')], ids=name)
def test_a_file_can_be_read_at_one_go(path):
    assert len(path.read_text('utf-8').splitlines()) <= 300


@pytest.mark.parametrize('path', files('configs'), ids=name)
def test_configs_import_ml_collections_and_other_configs(path):
    assert {module.split('.')[0] for module in imported(path)} <= {
        'ml_collections',
        'configs',
    }


@pytest.mark.parametrize('path', files('experiments'), ids=name)
def test_the_runner_does_not_import_configs_or_tests(path):
    roots = {module.split('.')[0] for module in imported(path)}
    assert not roots & {
        'configs',
        'tests',
        'benchmarks',
        'tensorflow',
        'torch',
        'pytest',
    }


def test_the_rules_speak_of_files_that_are_there():
    modules = {name(path).removeprefix(f'{LIBRARY}.') for path in files(LIBRARY)}
    assert GROUND | set(MAY_IMPORT) | set(KINDS) <= modules
