"""Tests of single-text objectives."""

import collections
import itertools
import re

import numpy as np
import pytest
import small_runs
from test_batches import epoch_of, unpack

from experiments import registries
from experiments.command_line import flags
from experiments.command_line.screen import Screen
from experiments.data import corpus, sources, tokenizers
from experiments.data.batches import Batches, Position
from experiments.data.corpus import Corpus, RaggedArray
from experiments.errors import UserError
from experiments.registries import OBJECTIVES
from experiments.training import setup

SENTINELS = [f'<extra_id_{i}>' for i in range(30)]
PIECES = ('<pad>', '</s>', '<s>', '<unk>', '<mask>', '.', *SENTINELS)
FIRST = len(PIECES)  # the first id of text
FIRST_SENTINEL = PIECES.index('<extra_id_0>')
LENGTHS = [*range(1, 60), 200, 333] * 5


def make(spec, pieces=PIECES):
    return OBJECTIVES.make(spec, pieces=pieces)


def examples(spec, lengths, seed=0):
    objective = make(spec)
    rng = np.random.default_rng(seed)
    for n in lengths:
        row = list(range(FIRST, FIRST + n))
        source, target = objective.example(row, rng)
        assert max(len(source), len(target)) <= n
        yield row, source, target


def spans_of(target):
    spans = {}
    for x in target:
        if x < FIRST:
            assert x not in spans, 'a sentinel twice'
            spans[x] = []
        else:
            spans[list(spans)[-1]].append(x)
    return spans


@pytest.mark.parametrize(('density', 'mean'), [(0.15, 3), (0.5, 1), (0.9, 2), (0.3, 9)])
def test_spans_inserted_at_their_sentinels_restore_the_text(density, mean):
    spec = f'span_corruption(density={density}, mean_span={mean})'
    for row, source, target in examples(spec, LENGTHS):
        spans = spans_of(target)
        assert all(spans.values())
        marks = [x for x in source if x < FIRST]
        assert marks == list(spans)
        assert marks == [FIRST_SENTINEL + i for i in range(len(marks))]
        whole = [spans[x] if x < FIRST else [x] for x in source]
        assert list(itertools.chain.from_iterable(whole)) == row


def test_density_and_mean_length_of_spans_follow_the_arguments():
    for row, _, target in examples('span_corruption', [200, 333, 512]):
        spans = spans_of(target)
        noise = sum(map(len, spans.values()))
        assert noise == round(0.15 * len(row))
        assert len(spans) == round(noise / 3)
    # The number of sentinels limits the number of spans.
    few = make('span_corruption(mean_span=1)', PIECES[: FIRST_SENTINEL + 2])
    row = list(range(FIRST, FIRST + 100))
    _, target = few.example(row, np.random.default_rng(0))
    assert len(spans_of(target)) == 2
    assert sum(x >= FIRST for x in target) == 15


def test_all_placements_of_separate_spans_are_equally_likely():
    # 3 of 8 ids are in 2 spans: 2 ways to divide 3, and C(6, 2) places among 5 others.
    spec = 'span_corruption(density=0.375, mean_span=1.5)'
    found = collections.Counter(
        tuple(target) for _, _, target in examples(spec, [8] * 6_000)
    )
    assert len(found) == 30
    expected = 6_000 / 30
    chi_square = sum((n - expected) ** 2 / expected for n in found.values())
    assert chi_square < 58.3  # 29 degrees of freedom: p = 0.001


def test_denoising_masks_spans_of_poisson_lengths():
    masks = masked = inserted = 0
    for row, source, target in examples('denoise', [*LENGTHS, *[400] * 300]):
        assert target == row
        visible = [x for x in source if x >= FIRST]
        assert visible == sorted(set(visible)) and set(visible) <= set(row)
        hidden = len(row) - len(visible)
        assert hidden == -(-3 * len(row) // 10)
        # Masks between adjacent ids replace no id; all others replace at least one.
        text = [FIRST - 1, *source, row[-1] + 1]
        runs = [
            list(run)
            for is_mask, run in itertools.groupby(text, lambda x: x == 4)
            if not is_mask
        ]
        gaps = [b[0] - a[-1] - 1 for a, b in itertools.pairwise(runs)]
        assert all(b - a == 1 for run in runs for a, b in itertools.pairwise(run))
        if len(row) == 400:
            masks += source.count(4)
            masked += hidden
            inserted += gaps.count(0)
    # There are 300 · 40 spans. The last of each row is cut, which is one in 40.
    assert abs(masked / masks - 3) < 0.1
    # A Poisson length of 0 has probability e⁻³; 0.7 of the neighbors are text.
    share = inserted / masks
    assert 0.5 * np.exp(-3) < share < np.exp(-3)


@pytest.mark.parametrize('packed', [False, True], ids=['padded', 'packed'])
@pytest.mark.parametrize('side', ['source', 'target'])
def test_epochs_have_new_examples_and_resumed_runs_the_same(side, packed):
    rng = np.random.default_rng(0)
    rows = [list(range(FIRST, FIRST + n)) for n in rng.integers(1, 60, 400)]
    stored = Corpus(*map(RaggedArray.from_rows, (rows[:200], rows[200:])))

    def make_batches():
        objective = make(f'denoise(side="{side}")')
        settings = dict(tokens=512, max_length=64, packed=packed, seed=3, window=90)
        return Batches(stored, objective=objective, **settings)

    expected = sorted(rows[:200] if side == 'source' else rows[200:])
    epochs = []
    for epoch in range(2):
        found = [x for batch in epoch_of(make_batches(), epoch) for x in unpack(batch)]
        assert sorted(target for _, target in found) == expected
        epochs.append(sorted(found))
    assert epochs[0] != epochs[1]
    steps = list(itertools.islice(make_batches().iterate(Position()), 30))
    for i in range(0, 29, 7):
        resumed, _ = next(make_batches().iterate(steps[i][1]))
        for name, array in steps[i + 1][0].items():
            np.testing.assert_array_equal(resumed[name], array)


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    folder = small_runs.write_text(tmp_path_factory.mktemp('text'), val=3)
    return small_runs.source(folder)


def test_tokenizer_has_sentinels_in_their_order(data, tmp_path):
    source = sources.load(data)
    spec = 'sentencepiece(vocab_size=200, sentinels=12)'
    words = tokenizers.train(tokenizers.make(spec), source, tmp_path)
    objective = registries.make('objective', 'span_corruption', pieces=())
    objective = objective.with_tokenizer(words)
    assert words.pieces(objective.marks) == [f'<extra_id_{i}>' for i in range(12)]
    stored = corpus.prepare(source, words, tmp_path)
    found = corpus.examples(stored, np.arange(9), objective, np.arange(9))
    for i in range(9):
        text, target = words.decode(
            [found.source[i].tolist(), found.target[i].tolist()]
        )
        spans = re.split(r'(<extra_id_\d+>)', target)[1:]
        for mark, span in zip(spans[::2], spans[1::2], strict=True):
            text = text.replace(mark, span)
        (whole,) = words.decode([stored.source[i].tolist()])
        assert text.replace(' ', '') == whole.replace(' ', '')


@pytest.mark.slow
@pytest.mark.usefixtures('cache')
def test_run_starts_from_a_pretrained_run(data, tmp_path):
    fields = small_runs.TWO_STEPS | {
        'data': data,
        'tokenizer': 'sentencepiece(vocab_size=200, sentinels=9)',
    }
    first = tmp_path / 'first'
    small_runs.train(first, *small_runs.flags(fields, objective='span_corruption'))
    changed = fields | {'init_from': str(first)}
    config = flags.settings('wmt_small', changed).config
    second = setup.prepare(config, tmp_path / 'second', Screen(None))
    assert second.tokenizer.model == (first / 'tokenizer.model').read_bytes()
    assert second.warm_start and second.warm_start.variables


def test_tokenizer_without_masks_is_rejected_before_training(data, tmp_path):
    config = flags.settings('wmt_small', {'data': data, 'objective': 'denoise'}).config
    with pytest.raises(UserError, match='objective: .*<mask>'):
        setup.prepare(config, tmp_path / 'run', Screen(None))
