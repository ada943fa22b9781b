"""Tests that notebooks run from the top and keep the kinds of their outputs."""

import ast
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / 'notebooks').glob('*.ipynb'))
NOTEBOOKS = {file.stem: json.loads(file.read_text('utf-8')) for file in FILES}
REPOSITORY = 'https://github.com/flaxformer-lite/flaxformer_lite'
# Replacements in a notebook's text that shorten training. The stored outputs are those
# of the whole notebook, by `notebooks.execute`.
SHORT_RUN = 'steps=20 --config.evaluation.extra_length=1'
SHORTENED = {
    'quickstart': {'steps=400': SHORT_RUN, 'every=400': 'every=20', '=400*': '=20*'},
    'look_inside': {'steps=400': SHORT_RUN, 'every=400': 'every=20'},
    'explain': {'steps=400': SHORT_RUN, 'every=400': 'every=20'},
    'own_loop': {
        'range(500)': 'range(20)',
        'range(301)': 'range(21)',
        'range(200)': 'range(5)',
        'range(100)': 'range(5)',
        '% 100 ==': '% 20 ==',
    },
    'pretrained': {'STEPS = 400': 'STEPS = 100'},
    'ablation': {': 150,': ': 4,', 'seeds=(0, 1, 2)': 'seeds=(0, 1)'},
    'tasks': {'steps=500': 'steps=20', 'every=500': 'every=20', '=500*': '=20*'},
}
every_notebook = pytest.mark.parametrize('name', NOTEBOOKS)


def in_order():
    """Returns the names in `execute.py`, which cannot be imported without its extra."""
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


def test_git_ignores_what_notebooks_write():
    ignored = (ROOT / '.gitignore').read_text('utf-8').splitlines()
    for name in NOTEBOOKS:
        for cell in cells(name, 'code'):
            for file in re.findall(r'(?:writefile |--out=)(\w+)', source(cell)):
                assert any(line.strip('/').startswith(file) for line in ignored), file


@pytest.fixture(scope='module')
def checkout(tmp_path_factory):
    """Returns a shared copy, since `look_inside` opens the run of `quickstart`."""
    from notebooks import execute

    folder = tmp_path_factory.mktemp('notebooks')
    with pytest.MonkeyPatch.context() as patch:
        # A reader has one device, and broadcasts; programs are compiled as in tests.
        for name in ('JAX_NUMPY_RANK_PROMOTION', 'NPROC'):
            patch.delenv(name, raising=False)
        patch.setenv('XLA_FLAGS', '--xla_backend_optimization_level=0')
        patch.setenv('FLAXFORMER_LITE_CACHE', str(folder / 'cache'))
        yield execute.copy_checkout(folder)


@pytest.mark.notebooks
@pytest.mark.parametrize('name', in_order())
def test_notebook_runs_from_the_top(name, checkout):
    from notebooks import execute

    file = checkout / f'notebooks/{name}.ipynb'
    file.write_text(shorten(name, file.read_text('utf-8')), 'utf-8')
    notebook = execute.execute(file)
    found = [cell for cell in notebook.cells if cell.cell_type == 'code']
    now = [form_of(cell.outputs) for cell in found]
    assert now == [form_of(cell['outputs']) for cell in cells(name, 'code')]


def shorten(name, text):
    for long, short in SHORTENED.get(name, {}).items():
        assert long in text
        text = text.replace(long, short)
    return text


def form_of(outputs):
    """Returns the kinds of a cell's outputs, except stderr, which varies by machine."""
    return [
        (output['output_type'], sorted(output.get('data', {})))
        for output in outputs
        if output.get('name') != 'stderr'
    ]


@every_notebook
def test_notebook_begins_with_a_colab_badge_and_an_installing_cell(name):
    badge = source(NOTEBOOKS[name]['cells'][0])
    path = REPOSITORY.removeprefix('https://github.com/')
    address = f'https://colab.research.google.com/github/{path}/blob/main'
    assert f'({address}/notebooks/{name}.ipynb)' in badge
    installs = {source(cells(other, 'code')[0]) for other in NOTEBOOKS}
    assert len(installs) == 1
    assert installs.pop().count(REPOSITORY) == 1


@every_notebook
def test_notebook_is_on_the_site_with_pictures(name):
    assert f': notebooks/{name}.md\n' in (ROOT / 'mkdocs.yml').read_text('utf-8')
    for output in outputs(name):
        data = output.get('data', {})
        if ''.join(data.get('text/plain', '')).startswith('alt.'):
            assert data.keys() & {'image/png', 'image/svg+xml'}


@every_notebook
def test_notebook_outputs_are_complete_small_and_without_local_paths(name):
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
