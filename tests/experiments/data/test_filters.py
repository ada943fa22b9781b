"""Tests of filters."""

import io
import json

import pytest
import small_runs

from experiments import registries
from experiments.command_line import flags
from experiments.command_line.screen import Screen
from experiments.data import corpus, sources, tokenizers
from experiments.data.filters import Filtered
from experiments.errors import UserError
from experiments.training import setup

PAIRS = [
    ('a b c', 'd e f'),
    ('same text', 'same  text'),
    ('a b c', 'd e f'),
    ('one', 'dreimal so lang'),
    ('a b c', 'd e g'),
    ('', 'blank source'),
    ('Same text', 'same text'),
    ('one', 'einsein'),
]


def write(folder, pairs):
    folder.mkdir()
    for i, language in enumerate(('en', 'de')):
        for name, found in {'train': pairs, 'val': [('a b c', 'd e h')]}.items():
            lines = ''.join(f'{pair[i]}\n' for pair in found)
            (folder / f'{name}.{language}').write_text(lines, 'utf-8')
    return small_runs.source(folder)


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / 'text', PAIRS)


def filtered(data, spec):
    return Filtered(sources.load(data), registries.make_all('filters', spec))


def remaining(data, spec):
    return list(filtered(data, spec).train())


def test_each_filter_removes_its_pairs(data, tmp_path):
    assert remaining(data, 'duplicates') == list(dict.fromkeys(PAIRS))
    assert remaining(data, 'copies') == [x for x in PAIRS if x[0] != 'same text']
    # 15 and 7 characters to 3; 3 words and 1 word to 1.
    assert remaining(data, 'length_ratio(most=5)') == PAIRS
    assert remaining(data, 'length_ratio(most=4.9)') == PAIRS[:3] + PAIRS[4:]
    assert remaining(data, 'length_ratio(most=2)') == PAIRS[:3] + PAIRS[4:-1]
    by_words = remaining(data, 'length_ratio(most=2, unit="words")')
    assert by_words == PAIRS[:3] + PAIRS[4:]
    with pytest.raises(UserError, match='filters=copies'):
        remaining(write(tmp_path / 'copies', [('a', 'a')]), 'copies')


def test_each_removed_pair_is_counted_for_the_first_filter_that_removes_it(data):
    found = filtered(data, '[copies, length_ratio(most=4), duplicates]')
    for _ in range(2):  # each pass resets the counts
        pairs = list(found.train())
        counts = {'copies': 1, 'length_ratio(most=4)': 1, 'duplicates': 1}
        assert found.left_out == counts
        assert len(pairs) + 3 == len(PAIRS)
    assert dict(found.evaluation()) == dict(sources.load(data).evaluation())


def test_token_cache_stores_counts_in_an_unchanged_format(data, tmp_path):
    """Checkpoints store a digest of the cache."""
    distinct = filtered(data, 'duplicates')
    counts = {'duplicates': 1}
    for source, left_out in [(sources.load(data), {}), (distinct, counts)]:
        folder = tmp_path / type(source).__name__
        words = tokenizers.make('bytes')
        first, again = (corpus.prepare(source, words, folder) for _ in range(2))
        assert first.left_out == again.left_out == left_out
        assert (len(first), first.skipped) == (len(again), again.skipped)
        (file,) = folder.glob('corpus-*/corpus.json')
        expected = {'dtype': first.target.tokens.dtype.name, 'skipped': 1}
        expected |= {'left_out': left_out} if left_out else {}
        assert json.loads(file.read_text('utf-8')) == expected


@pytest.mark.usefixtures('cache')
def test_run_counts_removed_pairs_and_trains_its_tokenizer_without_them(tmp_path):
    folder = small_runs.write_text(tmp_path, val=2)
    whole = list(sources.load(small_runs.source(folder)).train())
    data = write(tmp_path / 'more', [*whole, *whole[:7], ('☃ x', '☃ x')])
    fields = small_runs.FIELDS | {'data': data, 'train.steps': 1}
    fields |= {'tokenizer': 'characters', 'filters': '[copies, duplicates]'}
    fields |= {'batch.max_length': 256}
    settings = flags.settings('wmt_small', fields)
    prepared = setup.prepare(settings.config, tmp_path / 'run', Screen(io.StringIO()))
    repeated = 7 + len(whole) - len(set(whole))
    counts = f'0 blank, 1 by copies, {repeated} by duplicates)'
    assert counts in setup.describe(prepared, tmp_path / 'run')
    assert len(prepared.pairs) == len(set(whole))
    (row,) = prepared.tokenizer.encode(['a'])
    assert prepared.tokenizer.encode(['a☃']) == [[*row, 3]]


FILTER = """
import dataclasses
from experiments.data.filters.base import Filter

@dataclasses.dataclass(frozen=True)
class Without(Filter):
    word: str

    def keeps(self, source, target):
        return self.word not in target
"""


def test_digest_depends_on_filters_and_on_the_code_of_user_filters(
    data, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / 'my_filters.py'
    file.write_text(FILTER)
    spec = 'my_filters.Without(word="g")'
    assert remaining(data, spec) == [x for x in PAIRS if 'g' not in x[1]]
    specs = ('copies', spec, 'my_filters.Without(word="h")')
    digests = {filtered(data, text).digest() for text in specs}
    digests.add(sources.load(data).digest())
    file.write_text(FILTER.replace('not in', 'in'))
    digests.add(filtered(data, spec).digest())
    assert len(digests) == 5
