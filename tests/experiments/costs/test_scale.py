"""Tests of docs/explanation/scale.md: its formulas against XLA, and its tables."""

from pathlib import Path

import pytest

from benchmarks import scale

PAGE = Path(__file__).parents[3] / 'docs/explanation/scale.md'


def _percent(text: str) -> float:
    return abs(float(text.rstrip('%')))


@pytest.mark.slow
def test_memory_is_within_a_fifth_of_what_xla_plans_but_once():
    offs = {tuple(row[:4]): _percent(row[-1]) for row in scale.compiled() if row[-1]}
    assert len(offs) >= 40
    beyond = [case for case, off in offs.items() if off > 20]
    assert beyond == [('wmt_big', '1 × 8 × 4', '8 × 256', 'blocks')]


@pytest.mark.slow
def test_what_xla_refuses_does_not_fit_by_the_formula():
    refused = [row for row in scale.compiled() if row[5] == '—']
    assert len(refused) == 13
    assert all(float(row[4]) > 16.9 for row in refused)


def test_flops_and_bytes_are_near_those_of_compiled_steps():
    rows = scale.received()
    assert len(rows) == 4
    for row in rows:
        assert _percent(row[3]) <= 3
        assert _percent(row[6]) <= 10


@pytest.mark.slow
def test_the_page_has_the_tables():
    page = PAGE.read_text('utf-8')
    without_price = [row[:-1] for row in scale.runs(scale.H100)]
    for row in [*scale.paying(), *scale.runs(scale.V5E), *without_price]:
        assert f'| {" | ".join(row)} |' in page


def test_a_chip_that_sends_nothing_only_computes():
    one = scale.Layout(1, 1, 1)
    found = scale.step('wmt_base', one, scale.Work('none'))
    assert found.seconds == found.products
