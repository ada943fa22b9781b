"""The runner's rooms import downwards only, in the order of docs/architecture.md."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# The lowest first. A module that is named here apart from its room has a place of its
# own.
ORDER = (
    'runtime',
    'data',
    'config',
    'optimizers',
    'config.check',
    'command_line',
    'checkpoints',
    'runs',
    'evaluation',
    'conversion',
    'costs',
    'training',
    'sweeps',
    'reports',
)
MOST_FILES = 9  # of a room, beside its __init__ and its own rooms
FILES = sorted((ROOT / 'experiments').rglob('*.py'))
ROOMS = sorted({file.parent for file in FILES} - {ROOT / 'experiments'})


def name(path):
    """`experiments/runs/lock.py` → `runs.lock`; `experiments/run.py` → `run`."""
    parts = path.relative_to(ROOT / 'experiments').with_suffix('').parts
    return '.'.join(parts).removesuffix('.__init__')


def imported(tree):
    """The runner's modules that a syntax tree imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, 'a relative import'
            modules = [f'{node.module}.{alias.name}' for alias in node.names]
        else:
            continue
        for module in modules:
            if module.startswith('experiments.'):
                yield module.removeprefix('experiments.')


def floor(module):
    """The place of a module in ORDER; commands stand above all rooms."""
    parts = module.split('.')
    for length in (2, 1):
        part = '.'.join(parts[:length])
        if part in ORDER:
            return ORDER.index(part)
    return len(ORDER)


def refused(own, tree):
    """What a module imports and may not: what stands above it, and any command."""
    top = len(ORDER)
    return {x for x in imported(tree) if floor(x) > floor(own) or floor(x) == top}


@pytest.mark.parametrize('path', FILES, ids=name)
def test_imports_point_downwards(path):
    assert not refused(name(path), ast.parse(path.read_text('utf-8')))


@pytest.mark.parametrize('own', [*ORDER, 'translate'])
def test_every_room_refuses_a_command_and_what_stands_above_it(own):
    for above in (*ORDER[floor(own) + 1 :], 'evaluate', 'run'):
        for text in (
            f'from experiments.{above} import main',
            f'import experiments.{above} as other',
            f'def late():\n    from experiments.{above} import main',
        ):
            assert refused(f'{own}.anything', ast.parse(text)), text
    assert refused(own, ast.parse('from experiments import report')) == {'report'}


@pytest.mark.parametrize('room', ROOMS, ids=name)
def test_a_room_says_what_it_is_in_one_line(room):
    docstring = ast.get_docstring(ast.parse((room / '__init__.py').read_text('utf-8')))
    assert docstring and len(docstring.split('\n\n')[0].splitlines()) == 1


@pytest.mark.parametrize(
    'room', [room for room in ROOMS if room.name != 'grammar'], ids=name
)
def test_a_room_is_looked_over_at_one_glance(room):
    files = [file for file in room.glob('*.py') if file.name != '__init__.py']
    assert len(files) <= MOST_FILES


def test_every_room_has_its_place_and_every_place_its_room():
    rooms = {name(room).split('.')[0] for room in ROOMS}
    assert rooms == {place.split('.')[0] for place in ORDER}


def test_the_architecture_names_files_that_are_there():
    text = (ROOT / 'docs' / 'architecture.md').read_text('utf-8')
    words = {word.strip('`,.;:()').split('=')[-1] for word in text.split()}
    paths = {word for word in words if word.endswith('.py') and '/' in word}
    assert len(paths) > 20
    for path in paths:
        assert (ROOT / path).is_file(), path
