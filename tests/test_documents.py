"""README and CONTRIBUTING say what the code says."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

import flaxformer_lite
from flaxformer_lite.config import variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.layers import blocks

ROOT = Path(__file__).parents[1]
README = (ROOT / 'README.md').read_text('utf-8')
CONTRIBUTING = (ROOT / 'CONTRIBUTING.md').read_text('utf-8')


def table():
    """The rows of 'What can be exchanged': the names of fields, and what is beside."""
    section = README[README.index('## What can be exchanged') :]
    section = section[: section.index('## Look inside')]
    rows = re.findall(r'^\| (.*?) \| (.*) \|$', section, re.MULTILINE)
    return [(re.findall(r'`(\w+)`', left), right) for left, right in rows]


def test_the_readme_quotes_the_decoder_block_as_it_stands():
    code = Path(inspect.getfile(blocks)).read_text('utf-8')
    (quoted,) = re.findall(r'```python\n(class DecoderBlock.*?)```', README, re.DOTALL)
    assert quoted in code


@pytest.mark.parametrize('field', variants.fields())
def test_the_readme_names_each_variant_of_a_field(field):
    (right,) = [right for names, right in table() if field in names]
    # What is said of a variant stands in brackets behind its name.
    named = re.findall(r'`(\w+)`', re.sub(r'\(.*?\)', '', right))
    missing = set(variants.names(field)) - set(named)
    assert not missing
    assert set(named) - set(variants.names(field)) <= {'parallel', 'd_model'}


def test_the_readme_names_each_field_of_a_model():
    named = re.findall(r'`(\w+)`', README[README.index('## What can be exchanged') :])
    assert {field.name for field in fields(ModelConfig)} <= set(named)


def test_readme_and_contributing_have_one_example_of_a_variant():
    example = r'```python\n("""Attention to what is near.*?)```'
    assert re.findall(example, README, re.DOTALL) == re.findall(
        example, CONTRIBUTING, re.DOTALL
    )


def test_contributing_names_the_folders_of_variants():
    rows = re.findall(r'^\| `(\w+)` \|', CONTRIBUTING, re.MULTILINE)
    assert set(rows) == set(variants.FOLDERS.values())


def test_the_citation_is_of_this_version():
    text = (ROOT / 'CITATION.cff').read_text('utf-8')
    assert f'\nversion: {flaxformer_lite.__version__}\n' in text
    changes = (ROOT / 'CHANGELOG.md').read_text('utf-8')
    released = re.search(r'\ndate-released: (\S+)\n', text)[1]
    assert f'## [{flaxformer_lite.__version__}] - {released}\n' in changes
