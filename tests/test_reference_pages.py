"""The tables of docs/guides/sweeps.md and table3.md are those of the code."""

import dataclasses
import re

import pages

from configs.sweeps import table3
from experiments.sweeps import schema

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


def test_the_guide_of_sweeps_names_every_field():
    guide = pages.text('docs/guides/sweeps.md')
    fields = {field.name for field in dataclasses.fields(schema.Sweep)}
    fields -= set(schema.NOT_OF_THE_FILE)
    assert code_in(first_cells(section(guide, 'A file'))) == fields


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
