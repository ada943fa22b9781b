"""docs/errors.md, run_directory.md, api.md and table3.md say what the code says."""

import ast
import re

import pages
import pytest

from configs.sweeps import table3
from experiments.sweeps import schema

ERRORS = pages.text('docs/errors.md')
TABLE_3 = pages.text('docs/guides/table3.md')


def cells(text):
    """The rows of a page's tables, as cells."""
    lines = re.findall(r'^\|(.*)\|$', text, re.MULTILINE)
    return [[cell.strip() for cell in line.split('|')] for line in lines]


def first_cells(text):
    return [row[0] for row in cells(text)]


def section(text, heading):
    return text.partition(f'\n## {heading}\n')[2].partition('\n## ')[0]


def code_in(cell_list):
    return {name for cell in cell_list for name in re.findall(r'`([^`]+)`', cell)}


def sources():
    for folder in ('experiments', 'flaxformer_lite'):
        for file in sorted((pages.ROOT / folder).rglob('*.py')):
            yield file, ast.parse(file.read_text('utf-8'))


def texts():
    """Every text of the code, with … for what stands in braces."""
    for _, tree in sources():
        yield from said(tree)


def said(tree):
    """The texts of a syntax tree, whole."""
    parts_of_others = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts_of_others |= set(node.values)
            parts = (getattr(part, 'value', '…') for part in node.values)
            yield ''.join(x if isinstance(x, str) else '…' for x in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node not in parts_of_others:
                yield node.value


MESSAGES = [
    message
    for heading in re.findall(r'^## (.*)$', ERRORS, re.MULTILINE)
    if heading not in ('Exit statuses', 'Of the library')
    for message in sorted(code_in(first_cells(section(ERRORS, heading))))
]


@pytest.fixture(scope='module')
def all_texts():
    return set(texts())


@pytest.mark.parametrize('message', MESSAGES)
def test_a_message_of_the_page_is_one_of_the_code(message, all_texts):
    parts = message.split('…')
    pattern = re.compile('.*'.join(map(re.escape, parts)), re.DOTALL)
    # To look for a word takes a hundredth of what a pattern does.
    longest = max(parts, key=len)
    assert any(longest in text and pattern.search(text) for text in all_texts)


def test_the_guide_of_sweeps_names_every_field():
    guide = pages.text('docs/guides/sweeps.md')
    assert code_in(first_cells(section(guide, 'A file'))) == set(schema.FIELDS)


def test_the_guide_has_table_3_as_published():
    rows = {row[0]: row for row in cells(section(TABLE_3, 'The rows'))[2:]}
    assert list(rows) == list(table3.ARMS)
    for arm, published in table3.published().items():
        perplexity, bleu, millions = rows[arm][-3:]
        assert float(perplexity) == published['perplexity']
        assert float(bleu) == published['bleu']
        if 'parameters' in published:
            assert float(millions) * 1e6 == published['parameters']
        else:
            assert not millions
