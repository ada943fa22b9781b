"""Every notebook runs from the top, and the repository holds what it then puts out."""

import ast
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / 'notebooks').glob('*.ipynb'))
NOTEBOOKS = {file.stem: json.loads(file.read_text('utf-8')) for file in FILES}
REPOSITORY = 'https://github.com/flaxformer-lite/flaxformer_lite'
every_notebook = pytest.mark.parametrize('name', NOTEBOOKS)


def in_order():
    """The names in `execute.py`, which cannot be imported without its extra."""
    text = (ROOT / 'notebooks' / 'execute.py').read_text('utf-8')
    (names,) = re.findall(r'NAMES = (\(.*?\n\))', text, re.DOTALL)
    return ast.literal_eval(names)


def cells(name, kind):
    found = NOTEBOOKS[name]['cells']
    return [cell for cell in found if cell['cell_type'] == kind]


def source(cell):
    return ''.join(cell['source'])


def outputs(name):
    return [output for cell in cells(name, 'code') for output in cell['outputs']]


@pytest.fixture(scope='module')
def checkout(tmp_path_factory):
    """A copy for all notebooks, as `look_inside` looks into the run of `quickstart`."""
    from notebooks import execute

    folder = tmp_path_factory.mktemp('notebooks')
    with pytest.MonkeyPatch.context() as patch:
        # What the tests ask of JAX, conftest.py, would slow the training.
        for name in ('XLA_FLAGS', 'JAX_NUMPY_RANK_PROMOTION', 'NPROC'):
            patch.delenv(name, raising=False)
        patch.setenv('FLAXFORMER_LITE_CACHE', str(folder / 'cache'))
        yield execute.copy_checkout(folder)


@pytest.mark.notebooks
@pytest.mark.parametrize('name', in_order())
def test_runs_from_the_top(name, checkout):
    from notebooks import execute

    notebook = execute.execute(checkout / f'notebooks/{name}.ipynb')
    found = [cell for cell in notebook.cells if cell.cell_type == 'code']
    now = [form_of(cell.outputs) for cell in found]
    assert now == [form_of(cell['outputs']) for cell in cells(name, 'code')]


def form_of(outputs):
    """The kinds of a cell's outputs: figures stay figures.

    What is said on stderr depends on the machine: that fonts are listed, for one.
    """
    return [
        (output['output_type'], sorted(output.get('data', {})))
        for output in outputs
        if output.get('name') != 'stderr'
    ]


@every_notebook
def test_it_begins_with_a_badge_that_opens_it_and_a_cell_that_installs(name):
    badge = source(NOTEBOOKS[name]['cells'][0])
    path = REPOSITORY.removeprefix('https://github.com/')
    address = f'https://colab.research.google.com/github/{path}/blob/main'
    assert f'({address}/notebooks/{name}.ipynb)' in badge
    installs = {source(cells(other, 'code')[0]) for other in NOTEBOOKS}
    assert len(installs) == 1
    assert f'git clone --quiet --depth 1 {REPOSITORY}\n' in installs.pop()


@every_notebook
def test_it_is_on_the_site_with_its_figures_as_pictures(name):
    assert f': notebooks/{name}.md\n' in (ROOT / 'mkdocs.yml').read_text('utf-8')
    for output in outputs(name):
        data = output.get('data', {})
        if ''.join(data.get('text/plain', '')).startswith('alt.'):
            assert data.keys() & {'image/png', 'image/svg+xml'}


@every_notebook
def test_its_outputs_are_there_small_and_of_no_machine(name):
    found = outputs(name)
    assert found
    for cell in cells(name, 'code'):
        prints = re.search(r'^(print\(|!)', source(cell), re.MULTILINE)
        assert cell['outputs'] or not prints
    counts = [cell['execution_count'] for cell in cells(name, 'code')]
    assert counts == list(range(1, len(counts) + 1))
    text = json.dumps(found)
    assert len(text) < 600_000
    assert not re.search(r'/(home|root|tmp|work|usr|content)/', text)
    assert all(x['output_type'] != 'error' for x in found)
    assert all(x.get('name') != 'stderr' for x in found)
