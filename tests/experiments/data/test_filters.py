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


def filtered(source, spec):
    return Filtered(source, registries.make_all('filters', spec))


def kept(data, spec):
    return list(filtered(sources.load(data), spec).train())


def test_each_filter_removes_its_pairs(data):
    assert kept(data, 'duplicates') == list(dict.fromkeys(PAIRS))
    assert kept(data, 'copies') == [x for x in PAIRS if x[0] != 'same text']
    # 15 and 7 characters to 3; 3 words and 1 word to 1.
    assert kept(data, 'length_ratio(most=5)') == PAIRS
    assert kept(data, 'length_ratio(most=4.9)') == PAIRS[:3] + PAIRS[4:]
    assert kept(data, 'length_ratio(most=2)') == PAIRS[:3] + PAIRS[4:-1]
    assert kept(data, 'length_ratio(most=2, unit="words")') == PAIRS[:3] + PAIRS[4:]


def test_the_first_of_a_list_that_leaves_a_pair_out_is_counted(data):
    found = Filtered(
        sources.load(data),
        registries.make_all('filters', '[copies, length_ratio(most=4), duplicates]'),
    )
    for _ in range(2):  # each pass resets the counts
        pairs = list(found.train())
        assert found.left_out == {
            'copies': 1,
            'length_ratio(most=4)': 1,
            'duplicates': 1,
        }
        assert len(pairs) + 3 == len(PAIRS)
    assert dict(found.evaluation()) == dict(sources.load(data).evaluation())


def test_counts_are_cached_with_the_tokens(data, tmp_path):
    words = tokenizers.make('bytes')
    source = sources.load(data)
    distinct = filtered(source, 'duplicates')
    first = corpus.prepare(distinct, words, tmp_path)
    again = corpus.prepare(distinct, words, tmp_path)
    assert first.left_out == again.left_out == {'duplicates': 1}
    assert (len(first), first.skipped) == (len(again), again.skipped) == (6, 1)
    assert corpus.prepare(source, words, tmp_path).left_out == {}


def test_the_files_of_stored_text_are_those_of_earlier_versions(data, tmp_path):
    """Checkpoints hold the digest of these files, so their content must not change."""
    whole = sources.load(data)
    distinct = filtered(whole, 'duplicates')
    for source, left_out in [(whole, {}), (distinct, {'left_out': {'duplicates': 1}})]:
        folder = tmp_path / type(source).__name__
        stored = corpus.prepare(source, tokenizers.make('bytes'), folder)
        (file,) = folder.glob('corpus-*/corpus.json')
        dtype = stored.target.tokens.dtype.name
        expected = {'dtype': dtype, 'skipped': 1, **left_out}
        assert json.loads(file.read_text('utf-8')) == expected


@pytest.mark.usefixtures('cache')
def test_a_run_is_without_them_and_says_how_many(tmp_path):
    folder = small_runs.write_text(tmp_path, val=2)
    whole = list(sources.load(small_runs.source(folder)).train())
    data = write(tmp_path / 'more', [*whole, *whole[:7], ('☃ x', '☃ x')])
    fields = small_runs.FIELDS | {'data': data, 'train.steps': 1}
    fields |= {'tokenizer': 'characters', 'filters': '[copies, duplicates]'}
    fields |= {'batch.max_length': 256}
    settings = flags.settings('wmt_small', fields)
    made = setup.prepare(settings.config, tmp_path / 'run', Screen(io.StringIO()))
    said = setup.describe(made, tmp_path / 'run')
    repeated = 7 + len(whole) - len(set(whole))
    assert f'0 blank, 1 by copies, {repeated} by duplicates)' in said
    assert len(made.pairs) == len(set(whole))
    # Nor does the tokenizer see them.
    assert made.tokenizer.encode(['a☃']) == [[*made.tokenizer.encode(['a'])[0], 3]]


OWN = """
import dataclasses
from experiments.data.filters.base import Filter

@dataclasses.dataclass(frozen=True)
class Without(Filter):
    word: str

    def keeps(self, source, target):
        return self.word not in target
"""


def test_one_of_your_own_and_its_code_make_other_text(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / 'own_filters.py'
    file.write_text(OWN)
    spec = 'own_filters.Without(word="g")'
    assert kept(data, spec) == [x for x in PAIRS if 'g' not in x[1]]
    source = sources.load(data)
    digests = {source.digest(), filtered(source, 'copies').digest()}
    for text in (spec, 'own_filters.Without(word="h")'):
        digests.add(filtered(source, text).digest())
    file.write_text(OWN.replace('not in', 'in'))
    digests.add(filtered(source, spec).digest())
    assert len(digests) == 5


@pytest.mark.parametrize(
    ('spec', 'message'),
    [
        ('copy', "^filters: 'copy' is not one of copies, duplicates, length_ratio"),
        ('length_ratio(most=0.5)', '^filters: most must be at least 1, not 0.5'),
        ('[', '^filters: .* is not a spec'),
        ('softmax(', '^filters: '),
    ],
)
def test_a_wrong_list_is_one_line_of_the_field(spec, message):
    with pytest.raises(UserError, match=message):
        registries.make_all('filters', spec)


def test_filtering_out_all_pairs_is_refused(tmp_path):
    data = write(tmp_path / 'text', [('a', 'a')])
    with pytest.raises(UserError, match='filters=copies'):
        kept(data, 'copies')
