"""The house as a whole: who may import whom, and how much there is of it."""

import ast
from pathlib import Path

import pytest
from importlinter import cli

from tests import mistakes

ROOT = Path(__file__).parents[1]
LIBRARY = sorted((ROOT / 'flaxformer_lite').rglob('*.py'))
# Syntax nodes; longer lines or other files make them no fewer.
MOST_OF_RUNNER = 129_810


def test_imports_keep_the_contracts_of_pyproject(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert cli.lint_imports(no_cache=True, verbose=False) == cli.EXIT_STATUS_SUCCESS


def test_the_runner_stays_small():
    files = (ROOT / 'experiments').rglob('*.py')
    trees = [ast.parse(file.read_text('utf-8')) for file in files]
    nodes = sum(1 for tree in trees for _ in ast.walk(tree))
    assert nodes <= MOST_OF_RUNNER, 'what can go?'


def test_mistakes_can_be_put_in():
    for mistake in mistakes.read_mistakes():
        text = (ROOT / mistake.file).read_text('utf-8')
        assert text.count(mistake.old) == 1, mistake.name


@pytest.mark.parametrize('file', LIBRARY, ids=lambda file: file.stem)
def test_the_library_opens_no_file_and_prints_nothing(file):
    for node in ast.walk(ast.parse(file.read_text('utf-8'))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ('open', 'print', 'input', '__import__')
