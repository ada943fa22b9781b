"""Tests that component pages name exactly the existing variants and arguments."""

import inspect
import re
from pathlib import Path

import pytest

from experiments.config.schema import allowed, display
from flaxformer_lite.config import variants
from flaxformer_lite.config.variants import LOSSES, PROCESSORS, STRATEGIES

ROOT = Path(__file__).parents[2]
OTHERS = {'loss': LOSSES, 'strategy': STRATEGIES, 'processor': PROCESSORS}
FOLDERS = variants.FOLDERS | OTHERS
KINDS = sorted(FOLDERS)


def arguments(kind, name):
    if kind not in OTHERS:
        return variants.arguments(kind, name)
    takes = OTHERS[kind].find(name).parameters
    # A spec cannot give the teacher of a loss.
    return {k: x for k, x in takes.items() if 'teacher' not in k}


ALL = [(kind, name) for kind in KINDS for name in FOLDERS[kind].names()]


def page(kind):
    _, _, folder = FOLDERS[kind].package.rpartition('.')
    return (ROOT / f'docs/reference/components/{folder}.md').read_text('utf-8')


def sections(kind):
    """Returns name → text of a page's section on each variant."""
    _, *parts = re.split(r'^## ', page(kind), flags=re.MULTILINE)
    named = [part.partition('\n') for part in parts]
    return {heading.strip('`'): text for heading, _, text in named}


def rows(text, columns):
    """Returns the rows of a text's tables with this many columns, without headers."""
    lines = [line[2:-2].split(' | ') for line in re.findall(r'^\| .* \|$', text, re.M)]
    chosen = [cells for cells in lines if len(cells) == columns and '`' in cells[0]]
    return [[cell.replace(r'\|', '|') for cell in cells] for cells in chosen]


@pytest.mark.parametrize('kind', KINDS)
def test_page_of_a_kind_names_its_variants(kind):
    assert sorted(sections(kind)) == FOLDERS[kind].names()


@pytest.mark.parametrize('kind', KINDS)
def test_page_of_a_kind_names_its_fields(kind):
    fields = {
        field for field in variants.fields() if variants._without_section(field) == kind
    }
    lead = page(kind).partition('\n## ')[0]
    assert fields <= set(re.findall(r'`model\.([\w.]+)`', lead))


def default(parameter):
    if parameter.default is inspect.Parameter.empty:
        return 'to be given'
    return f'`{display(parameter.default)}`'


@pytest.mark.parametrize(('kind', 'name'), ALL)
def test_page_has_the_arguments_defaults_and_ranges_of_a_variant(kind, name):
    cls = FOLDERS[kind].find(name).cls
    parameters = inspect.signature(cls).parameters
    expected = [
        [f'`{argument}`', default(parameters[argument]), allowed(kind_of)]
        for argument, kind_of in arguments(kind, name).items()
    ]
    text = sections(kind)[name]
    assert [cells[:3] for cells in rows(text, 4)] == expected
    assert ('No arguments.' in text) == (not expected)


@pytest.mark.parametrize(('kind', 'name'), ALL)
def test_page_has_the_formula_and_file_of_a_variant(kind, name):
    text = sections(kind)[name]
    assert re.search(r'^\$\$.+\$\$$', text, re.MULTILINE)
    path = f'{FOLDERS[kind].package.replace(".", "/")}/{name}.py'
    assert f'File: [`{name}.py`](../../../{path}).' in text
