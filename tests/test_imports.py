"""Who may import whom, by reading every file; and how long files and functions may be.

The rules of the library's rooms are here. The order of the runner's rooms is in
test_rooms.py.
"""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIBRARY = 'flaxformer_lite'
KINDS = ('attention', 'positions', 'norms', 'residual', 'feed_forward')
# What a variant is made of. It knows of no other kind, and of no layer above it.
OF_A_VARIANT = (
    'shapes',
    'ranges',
    'sizes',
    'masks',
    'kv_cache',
    'ops',
    'layers.dense',
    'layers.dropout',
)
OF_A_MODEL = (
    'sharding',
    'ranges',
    'remat',
    'sizes',
    'masks',
    'kv_cache',
    'special_tokens',
    'ops',
    'layers',
)
# What a room or a file may import beside its own room, from the lowest to the highest.
# A file's own rule stands in place of its room's. No rule allows a variant: only specs
# name one, so that a new one is a new file and nothing else.
MAY_IMPORT = {
    'shapes': (),
    'ranges': (),
    'remat': ('ranges',),
    'sizes': (),
    'special_tokens': ('ranges',),
    'masks': (),
    'kv_cache': (),
    'sharding': ('shapes',),
    'ops': ('shapes', 'sharding'),
    'init': ('ranges', 'sizes'),
    'layers.dense': ('init.base', 'init.xavier', 'ops', 'sharding'),
    'layers.dropout': ('ranges', 'ops'),
    'layers': ('ranges', 'remat', 'sizes', 'masks', 'kv_cache', 'ops', 'sharding'),
    **dict.fromkeys(KINDS, OF_A_VARIANT),
    'decoding': ('kv_cache', 'ops'),
    'models': OF_A_MODEL,
    'entity_encoder': ('masks', 'layers'),
    'config.spec': ('ranges',),
    'config.schema': ('ranges', 'sizes', 'models.base'),
    'config.variants': ('ranges', 'config.spec', 'config.schema'),
    'config': (
        'ranges',
        'sizes',
        'special_tokens',
        'layers',
        'models.base',
        'entity_encoder',
    ),
    'training.schedules': ('ranges', 'config.spec'),
    'training': (
        'ranges',
        'remat',
        'masks',
        'ops',
        'sharding',
        'layers.scanned_stack',
        'models.base',
    ),
    'generation': (
        'sharding',
        'special_tokens',
        'models.base',
        'decoding',
        'training.batch',
    ),
    'ensembling': ('kv_cache', 'special_tokens', 'models.base'),
    'introspection': ('layers', 'models.base', 'training'),
    'families': ('ranges', 'special_tokens', 'config'),
    'pretrained.folder': (),
    'pretrained': (
        'ranges',
        'sharding',
        'layers.scanned_stack',
        'models.base',
        'config',
        'training.train_step',
        'families.base',
    ),
    # What the package offers by name; the package imports it when a name is first used.
    'public': (
        'config',
        'decoding',
        'ensembling',
        'generation',
        'introspection',
        'ops',
        'pretrained',
        'sharding',
        'training',
    ),
    '': ('public',),
}
# Annotations may name what stands above or beside, where nothing is imported to run.
ONLY_FOR_TYPES = {
    'attention.base': {'positions.base'},
    'models.base': {'config.build'},
}
# The one file that reads files, and what it needs beside the library's own; it is
# imported when a checkpoint is read, and an extra.
READS_FILES = 'pretrained.folder'
SAFETENSORS = 'safetensors'
TUNING = re.compile('custom_vjp|custom_jvp|optimization_barrier|platform_dependent')


def files(folder):
    return sorted((ROOT / folder).rglob('*.py'))


def name(path):
    """`flaxformer_lite/norms/rms.py` → `flaxformer_lite.norms.rms`."""
    dotted = '.'.join(path.relative_to(ROOT).with_suffix('').parts)
    return dotted.removesuffix('.__init__')


def is_module(dotted):
    path = ROOT.joinpath(*dotted.split('.'))
    return path.is_dir() or path.with_suffix('.py').is_file()


def imported(tree):
    """Every module that a syntax tree imports, wherever it does so."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, 'a relative import'
            for alias in node.names:
                module = f'{node.module}.{alias.name}'
                found.add(module if is_module(module) else node.module)
    return found


def split_types(tree):
    """What is imported → to run; for annotations alone."""
    for_types = set()
    to_run = set()
    for node in tree.body:
        is_guard = (
            isinstance(node, ast.If) and ast.unparse(node.test) == 'TYPE_CHECKING'
        )
        names = imported(ast.Module([node], []))
        if is_guard:
            for_types |= names
        else:
            to_run |= names
    return to_run, for_types


def within(module, room):
    return module == room or module.startswith(f'{room}.')


def of_library(modules):
    """The library's modules among these, without its name."""
    own = {module for module in modules if within(module, LIBRARY)}
    return {module.removeprefix(LIBRARY).removeprefix('.') for module in own}


def rule_of(module):
    """The name of the rule that a module of the library goes by: the nearest one."""
    while module not in MAY_IMPORT:
        module = module.rpartition('.')[0]
    return module


def refused(module, tree):
    """What a file of the library imports and may not.

    Args:
      module: the file's, without the library's name: 'norms.rms'.
      tree: its syntax tree.
    """
    to_run, for_types = (of_library(names) for names in split_types(tree))
    rule = rule_of(module)
    rooms = (*MAY_IMPORT[rule], rule)
    for_types -= ONLY_FOR_TYPES.get(module, set())
    return {x for x in to_run | for_types if not any(within(x, room) for room in rooms)}


def parsed(path):
    return ast.parse(path.read_text('utf-8'))


def without_library(path):
    return name(path).removeprefix(LIBRARY).removeprefix('.')


every_library_file = pytest.mark.parametrize('path', files(LIBRARY), ids=name)
every_file = pytest.mark.parametrize(
    'path', [*files(LIBRARY), *files('experiments')], ids=name
)


@every_library_file
def test_a_file_of_the_library_imports_only_what_it_may(path):
    assert not refused(without_library(path), parsed(path))


def test_the_rules_speak_of_files_that_are_there_and_of_all_of_them():
    modules = {without_library(path) for path in files(LIBRARY)}
    assert set(MAY_IMPORT) <= modules
    assert set(ONLY_FOR_TYPES) <= modules
    assert [module for module in modules if rule_of(module) == ''] == ['']


def test_arrows_point_downwards():
    """What a rule allows stands above it in the table, so that no two rooms need each
    other."""
    rooms = list(MAY_IMPORT)
    for place, (rule, allowed) in enumerate(MAY_IMPORT.items()):
        for room in allowed:
            below = [x for x in rooms[:place] if within(room, x) or within(x, room)]
            assert below, f'{rule} may import {room}, which is not below it'


def test_no_rule_allows_a_variant():
    for allowed in MAY_IMPORT.values():
        for room in allowed:
            kind, _, variant = room.partition('.')
            assert kind not in KINDS
            # The default of matrices is the paper's.
            assert kind != 'init' or variant in ('base', 'xavier')


# What each room must not import, as one would write it; in a function, too.
WRONG = {
    'flaxformer_lite.training.train_step': (
        'from flaxformer_lite.training import train_step',
        'from flaxformer_lite.training.train_step import TrainState',
        'import flaxformer_lite.training.train_step as step',
        'def late():\n    from flaxformer_lite.training import train_step',
        'if TYPE_CHECKING:\n    from flaxformer_lite.training import train_step',
    ),
    'flaxformer_lite.attention.softmax': (
        'from flaxformer_lite.attention.softmax import Softmax',
        'from flaxformer_lite.attention import softmax',
    ),
    'flaxformer_lite.generation': (
        'from flaxformer_lite import generation',
        'from flaxformer_lite.generation import generate',
    ),
    'flaxformer_lite': (
        'import flaxformer_lite',
        'from flaxformer_lite import generate',
    ),
}
# The rooms to which one of these belongs, or that stand above it.
EXCEPT = {
    'flaxformer_lite.training.train_step': (
        'training',
        'introspection',
        'pretrained',
        'public',
    ),
    'flaxformer_lite.attention.softmax': ('attention',),
    'flaxformer_lite.generation': ('generation', 'public'),
    'flaxformer_lite': ('',),
}


@pytest.mark.parametrize(
    ('rule', 'wrong'),
    [
        (rule, wrong)
        for rule in MAY_IMPORT
        for wrong in WRONG
        if rule not in EXCEPT[wrong]
    ],
)
def test_every_room_refuses_what_stands_above_or_beside_it(rule, wrong):
    for text in WRONG[wrong]:
        assert refused(f'{rule}.anything', ast.parse(text)) == of_library({wrong}), text


@every_library_file
def test_the_library_needs_jax_flax_and_optax_and_nothing_else(path):
    roots = {module.split('.')[0] for module in imported(parsed(path))}
    allowed = {LIBRARY, 'jax', 'flax', 'optax'} | sys.stdlib_module_names
    if without_library(path) == READS_FILES:
        allowed |= {SAFETENSORS}
    assert roots <= allowed


@every_library_file
def test_the_library_touches_no_files_flags_or_console(path):
    tree = parsed(path)
    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & {'open', 'print', 'input'}
    outside = {'os', 'io', 'sys', 'pathlib', 'argparse', 'logging', 'time'}
    if without_library(path) == READS_FILES:
        outside -= {'pathlib'}
    assert not imported(tree) & outside


@every_library_file
def test_only_spec_imports_by_name(path):
    roots = {module.split('.')[0] for module in imported(parsed(path))}
    by_name = roots & {'importlib', 'pkgutil', 'runpy'}
    called = '__import__' in path.read_text('utf-8')
    assert name(path) == f'{LIBRARY}.config.spec' or not (by_name or called)


@every_library_file
def test_what_is_tuned_stands_in_ops(path):
    tuned = TUNING.search(path.read_text('utf-8'))
    assert not tuned or rule_of(without_library(path)) == 'ops'


@pytest.mark.parametrize('path', files('configs'), ids=name)
def test_configs_import_ml_collections_and_other_configs(path):
    roots = {module.split('.')[0] for module in imported(parsed(path))}
    assert roots <= {'ml_collections', 'configs'}


@pytest.mark.parametrize('path', files('experiments'), ids=name)
def test_the_runner_does_not_import_configs_or_tests(path):
    roots = {module.split('.')[0] for module in imported(parsed(path))}
    outside = {'configs', 'tests', 'benchmarks', 'tensorflow', 'torch', 'pytest'}
    assert not roots & outside


@every_file
def test_a_file_can_be_read_at_one_go(path):
    assert len(path.read_text('utf-8').splitlines()) <= 300


def lines_of_code(function):
    """The lines of a function's body, without its docstring."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    if not body:
        return 0
    return body[-1].end_lineno - body[0].lineno + 1


@every_file
def test_a_function_fits_on_a_screen(path):
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert lines_of_code(node) <= 40, node.name
