"""docs/variants/ name each variant and each argument that there is, and no others."""

import inspect
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from experiments.config.table import allowed, shown
from flaxformer_lite.config import spec, variants
from flaxformer_lite.kv_cache import KeyValues

ROOT = Path(__file__).parents[1]
KINDS = sorted(variants.FOLDERS)
ALL = [(kind, name) for kind in KINDS for name in variants.names(kind)]


def page(kind):
    return (ROOT / f'docs/variants/{variants.FOLDERS[kind]}.md').read_text('utf-8')


def sections(kind):
    """Name → text of what a page says of each variant."""
    _, *parts = re.split(r'^## ', page(kind), flags=re.MULTILINE)
    named = [part.partition('\n') for part in parts]
    return {heading.strip('`'): text for heading, _, text in named}


def rows(text, columns):
    """The rows of a text's tables that have so many columns, without their heads."""
    lines = [line[2:-2].split(' | ') for line in re.findall(r'^\| .* \|$', text, re.M)]
    return [cells for cells in lines if len(cells) == columns and '`' in cells[0]]


@pytest.mark.parametrize('kind', KINDS)
def test_a_page_names_the_variants_of_its_kind(kind):
    assert sorted(sections(kind)) == variants.names(kind)


@pytest.mark.parametrize('kind', KINDS)
def test_a_page_names_the_fields_of_its_kind(kind):
    fields = {field for field in variants.fields() if variants._plain(field) == kind}
    lead = page(kind).partition('\n## ')[0]
    assert fields <= set(re.findall(r'`model\.(\w+)`', lead))


@pytest.mark.parametrize(('kind', 'name'), ALL)
def test_a_page_has_the_arguments_defaults_and_ranges_of_a_variant(kind, name):
    cls = spec.find(f'flaxformer_lite.{variants.FOLDERS[kind]}', name)
    parameters = inspect.signature(cls).parameters
    expected = [
        [f'`{argument}`', f'`{shown(parameters[argument].default)}`', allowed(kind_of)]
        for argument, kind_of in variants.arguments(kind, name).items()
    ]
    text = sections(kind)[name]
    assert [cells[:3] for cells in rows(text, 4)] == expected
    assert ('No arguments.' in text) == (not expected)


@pytest.mark.parametrize(('kind', 'name'), ALL)
def test_a_page_has_a_formula_and_the_file_of_a_variant(kind, name):
    text = sections(kind)[name]
    assert re.search(r'^\$\$.+\$\$$', text, re.MULTILINE)
    path = f'flaxformer_lite/{variants.FOLDERS[kind]}/{name}.py'
    assert f'File: [`{name}.py`](../../{path}).' in text
    module = inspect.getdoc(inspect.getmodule(spec.find(*_place(kind, name))))
    # Who published it, and when, as the module says it.
    for author in re.findall(r'([A-Z]\w+) (?:et al\.|and \w+) \(?(\d{4})', module):
        assert all(word in text for word in author), author


def _place(kind, name):
    return f'flaxformer_lite.{variants.FOLDERS[kind]}', name


class NoDistances:
    """Relative positions that add nothing."""

    def scores(self, q_BTHK, *_):
        return jnp.zeros(())

    values = scores


def called(attention, **positions):
    """What an attention writes of itself; on shapes alone."""
    kv = KeyValues(jnp.ones((1, 2, 8, 4)), jnp.ones((1, 2, 8, 4)), jnp.zeros((1, 4)))
    given = dict(positions_BT=jnp.zeros((1, 4)), mask_BHTS=jnp.ones((1, 1, 4, 4), bool))
    module = spec.find('flaxformer_lite.attention', attention)()

    def run():
        q_BTHK = jnp.ones((1, 4, 2, 8))
        return module.init(
            jax.random.key(0), q_BTHK, kv, **given, **positions, mutable=True
        )

    return jax.eval_shape(run).get('intermediates', {})


def takes(attention, **positions):
    try:
        called(attention, **positions)
    except ValueError as error:
        assert re.search('holds no scores|needs a GPU', str(error))
        return 'holds no scores' not in str(error)
    return True


def holds_weights(attention):
    try:
        return 'weights' in called(attention)
    except ValueError as error:
        assert 'flash attention needs a GPU' in str(error)
        return False


TABLE = {cells[0].strip('`'): cells[1:] for cells in rows(page('attention'), 5)}


@pytest.mark.parametrize('name', variants.names('attention'))
def test_the_table_of_attentions_says_what_they_do(name):
    found = [
        takes(name, bias_BHTS=jnp.zeros((1, 2, 4, 4))),
        takes(name, relative_positions=NoDistances()),
        holds_weights(name),
        spec.find('flaxformer_lite.attention', name).per_head,
    ]
    assert [cell.startswith('yes') for cell in TABLE[name]] == found
