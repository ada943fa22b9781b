"""Tests of the structure of the project: allowed imports and public surface."""

import ast
import re
from pathlib import Path

import mistakes
from importlinter import cli

from experiments import __main__ as overview
from experiments import registries
from experiments.config import schema
from flaxformer_lite.config import variants

ROOT = Path(__file__).parents[2]
LIBRARY = sorted((ROOT / 'flaxformer_lite').rglob('*.py'))
TESTS = ROOT / 'tests'
# Commands, config fields and kinds of components. Explain each new line in its commit.
SURFACE = TESTS / 'surface.txt'


def test_imports_satisfy_the_contracts_of_pyproject(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert cli.lint_imports(no_cache=True, verbose=False) == cli.EXIT_STATUS_SUCCESS


def test_library_tests_import_neither_runner_nor_packages():
    forbidden = {'experiments', 'configs'}
    forbidden |= {path.name for path in (ROOT / 'packages').iterdir()}
    files = [TESTS / 'conftest.py', *(TESTS / 'flaxformer_lite').rglob('*.py')]
    for file in files:
        names = imported_packages(file)
        assert not names & forbidden, file
        helpers = [TESTS / f'{name}.py' for name in sorted(names)]
        files += [x for x in helpers if x.exists() and x not in files]


def imported_packages(file: Path) -> set[str]:
    """Returns the top-level names that a file imports."""
    modules = []
    for node in ast.walk(ast.parse(file.read_text('utf-8'))):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules.append(node.module or '')
    return {module.partition('.')[0] for module in modules}


def test_commands_config_fields_and_component_kinds_are_those_of_surface_txt():
    found = [*commands(), *config_fields(), *component_kinds()]
    assert found == SURFACE.read_text('utf-8').splitlines()


def commands() -> list[str]:
    """Returns the modules that `python -m` starts."""
    started = [command.split()[-1] for command, _ in overview.summaries()]
    return [f'command {name.removeprefix("experiments.")}' for name in started]


def config_fields() -> list[str]:
    return [f'field {name}' for name in schema.fields()]


def component_kinds() -> list[str]:
    folders = {**variants.FOLDERS, **registries.FOLDERS}
    return [f'kind {field} {folder.package}' for field, folder in folders.items()]


def test_each_planted_mistake_has_one_location_and_existing_tests():
    planted = mistakes.read_mistakes()
    assert len(planted) <= 100
    for mistake in planted:
        assert len(mistakes.find_places(ROOT, mistake)) == 1, mistake.name
        assert mistakes.find_tests(ROOT, mistake)


def test_ci_runs_existing_tests():
    named = re.findall(r'(tests/\S+\.py)(?:::(\w+))?', (ROOT / '.ci/run').read_text())
    assert named
    for file, test in named:
        assert f'def {test}' in (ROOT / file).read_text('utf-8'), test


def test_library_opens_no_file_and_prints_nothing():
    forbidden = ('open', 'print', 'input', '__import__')
    for file in LIBRARY:
        for node in ast.walk(ast.parse(file.read_text('utf-8'))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in forbidden, (file, node.lineno)
