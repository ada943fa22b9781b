"""Tests of batches."""

import functools
import itertools
import json
import threading

import jax
import numpy as np
import pytest
import tiny

from experiments.data import collate, packing
from experiments.data.batches import Batches, Position
from experiments.data.corpus import Corpus, RaggedArray
from experiments.data.prefetch import prefetch
from experiments.errors import UserError
from flaxformer_lite.special_tokens import SpecialTokens
from flaxformer_lite.training.batch import make_batch
from flaxformer_lite.training.loss import loss_sums

BOS, EOS = 2, 1
padded_and_packed = pytest.mark.parametrize(
    'packed', [False, True], ids=['padded', 'packed']
)


def make_corpus(pairs=300, longest=40, seed=0):
    """Returns pairs that start with a number of their own."""
    rng = np.random.default_rng(seed)
    sides = []
    for _ in range(2):
        lengths = np.clip(rng.lognormal(2.2, 0.6, pairs).astype(int), 1, longest - 1)
        sides.append(
            [[4 + i, *rng.integers(4, 99, n - 1)] for i, n in enumerate(lengths)]
        )
    return Corpus(*map(RaggedArray.from_rows, sides))


def pairs_of(corpus, indices=None):
    indices = range(len(corpus)) if indices is None else indices
    return [(corpus.source[i].tolist(), corpus.target[i].tolist()) for i in indices]


def unpack(batch):
    """Checks the layout of a batch and returns its pairs."""
    assert all(array.dtype == np.int32 for array in batch.values())
    found = []
    for row in range(len(batch['source'])):
        for segment in range(1, batch['target_segments'][row].max() + 1):
            source_at = batch['source_segments'][row] == segment
            target_at = batch['target_segments'][row] == segment
            source = batch['source'][row][source_at].tolist()
            labels = batch['labels'][row][target_at].tolist()
            inputs = batch['inputs'][row][target_at].tolist()
            assert source[-1] == labels[-1] == EOS
            assert inputs == [BOS, *labels[:-1]]
            for side, at in (('source', source_at), ('target', target_at)):
                positions = batch[f'{side}_positions'][row][at].tolist()
                assert positions == list(range(len(positions)))
            found.append((source[:-1], labels[:-1]))
    filled = (
        sum(len(source) + 1 for source, _ in found),
        sum(len(target) + 1 for _, target in found),
    )
    assert filled == ((batch['source'] > 0).sum(), (batch['labels'] > 0).sum())
    for name in ('source', 'target'):
        outside = batch[f'{name}_segments'] == 0
        names = ('source',) if name == 'source' else ('inputs', 'labels')
        assert not any(batch[n][outside].any() for n in (*names, f'{name}_positions'))
    return found


def epoch_of(batches, epoch=0):
    steps = batches.iterate(Position(epoch))
    found = []
    for batch, after in steps:
        found.append(batch)
        if after.epoch > epoch:
            return found
    raise AssertionError('the batches end')


def test_packed_batch_has_segments_positions_and_shifted_inputs():
    corpus = Corpus(
        RaggedArray.from_rows([[10, 11], [], [12, 13, 14], [15]]),
        RaggedArray.from_rows([[20], [21, 22], [23], [24, 25, 26]]),
    )
    batch = collate.pairs_batch(
        corpus, (3, 7), np.array([3, 0, 2]), np.array([0, 0, 2])
    )
    expected = {
        'source': [[15, 1, 10, 11, 1, 0, 0], [0] * 7, [12, 13, 14, 1, 0, 0, 0]],
        'source_segments': [[1, 1, 2, 2, 2, 0, 0], [0] * 7, [1, 1, 1, 1, 0, 0, 0]],
        'source_positions': [[0, 1, 0, 1, 2, 0, 0], [0] * 7, [0, 1, 2, 3, 0, 0, 0]],
        'inputs': [[2, 24, 25, 26, 2, 20, 0], [0] * 7, [2, 23, 0, 0, 0, 0, 0]],
        'labels': [[24, 25, 26, 1, 20, 1, 0], [0] * 7, [23, 1, 0, 0, 0, 0, 0]],
        'target_segments': [[1, 1, 1, 1, 2, 2, 0], [0] * 7, [1, 1, 0, 0, 0, 0, 0]],
        'target_positions': [[0, 1, 2, 3, 0, 1, 0], [0] * 7, [0, 1, 0, 0, 0, 0, 0]],
    }
    assert {name: array.tolist() for name, array in batch.items()} == expected


@padded_and_packed
@pytest.mark.parametrize('window', [7, 100, 1 << 17])
def test_each_pair_occurs_once_per_epoch_for_any_window(packed, window):
    corpus = make_corpus()
    batches = Batches(corpus, tokens=256, max_length=64, packed=packed, window=window)
    orders = []
    for epoch in range(3):
        found = [pair for batch in epoch_of(batches, epoch) for pair in unpack(batch)]
        assert sorted(found) == sorted(pairs_of(corpus))
        orders.append(found)
    assert orders[0] != orders[1] != orders[2] != orders[0]


@padded_and_packed
def test_pairs_longer_than_max_length_are_dropped_and_counted(packed):
    corpus = make_corpus(longest=40)
    longest = np.maximum(corpus.source.lengths(), corpus.target.lengths()) + 1
    indices = np.flatnonzero(longest <= 20)
    assert 20 in longest and 21 in longest
    batches = Batches(corpus, tokens=256, max_length=20, packed=packed)
    assert batches.dropped == len(corpus) - len(indices)
    assert batches.longest == max(
        len(side) + 1 for pair in pairs_of(corpus, indices) for side in pair
    )
    found = [pair for batch in epoch_of(batches) for pair in unpack(batch)]
    assert sorted(found) == sorted(pairs_of(corpus, indices))


@padded_and_packed
@pytest.mark.parametrize('window', [60, 1 << 17])
def test_batches_resume_exactly_from_any_position(packed, window):
    batches = Batches(
        make_corpus(150), tokens=200, max_length=48, packed=packed, window=window
    )
    unbroken = list(
        itertools.islice(batches.iterate(Position()), 3 * batches.batches_per_epoch)
    )
    assert unbroken[-1][1].epoch >= 2
    before = [Position(), *(after for _, after in unbroken)]
    for start in range(len(unbroken) - 1):
        again = Batches(
            make_corpus(150), tokens=200, max_length=48, packed=packed, window=window
        )
        position = Position(*json.loads(json.dumps(before[start])))
        for batch, after in itertools.islice(again.iterate(position), 2):
            expected, expected_after = unbroken[start]
            assert after == expected_after
            assert all(np.array_equal(batch[name], expected[name]) for name in expected)
            start += 1


@padded_and_packed
def test_shapes_are_few_and_reported_counts_match_the_batches(packed):
    batches = Batches(
        make_corpus(1000), tokens=500, max_length=64, packed=packed, rows_multiple=4
    )
    found = epoch_of(batches)
    shapes = {batch['labels'].shape for batch in found}
    assert shapes == set(batches.shapes)
    assert len(shapes) <= (1 if packed else 5)
    for rows, length in shapes:
        assert rows % 4 == 0
        assert 500 - 4 * length < rows * length <= 500
    positions = sum(batch['labels'].size + batch['source'].size for batch in found)
    target = sum((batch['labels'] > 0).sum() for batch in found)
    filled = target + sum((batch['source'] > 0).sum() for batch in found)
    assert batches.padding_share == pytest.approx(1 - filled / positions)
    assert batches.target_tokens_per_batch == pytest.approx(target / len(found))
    assert batches.batches_per_epoch == len(found)


def test_packing_fills_95_percent_of_the_rows():
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(2.7, 0.4, 10_000), 3, 64).astype(int)
    rows = packing.first_fit(np.stack([lengths, lengths], axis=1), 64)
    assert lengths.sum() / (64 * (rows.max() + 1)) > 0.95
    assert np.bincount(rows, lengths).max() <= 64


def test_bucket_lengths_minimize_padding():
    counts = np.zeros(101, int)
    counts[[8, 21, 90]] = 1000, 1000, 10
    lengths = functools.partial(packing.bucket_lengths, windows=1)
    assert lengths(counts, tokens=960, most=100) == [8, 24, 96]
    # One batch holds all pairs, so more buckets would only add shapes.
    assert lengths(counts // 10, tokens=96_000, most=100) == [96]
    # The limit needn't be a multiple of 8.
    assert lengths(counts, tokens=960, most=91)[-1] == 91


def test_permute_is_a_permutation_that_mixes_well():
    for size in (1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000):
        index = np.arange(size)
        assert sorted(packing.permute(index, size, (3, 1))) == index.tolist()
    size = 100_000
    whole = packing.permute(np.arange(size), size, (0, 0))
    part = np.array([7, 99_999, 31_415])
    assert packing.permute(part, size, (0, 0)).tolist() == whole[part].tolist()
    other = packing.permute(np.arange(size), size, (0, 1))
    assert (whole == other).sum() < 20
    for a, b in ((whole, np.arange(size)), (whole, other), (whole[1:], whole[:-1])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.02
    # Neighbors are spread over the corpus.
    drawn = np.bincount(whole[:10_000] // 10_000, minlength=10)
    assert drawn.min() > 850 and drawn.max() < 1150


@padded_and_packed
def test_more_devices_only_add_empty_rows(packed):
    settings = dict(tokens=500, max_length=64, packed=packed, accumulate=2)
    alone = Batches(make_corpus(), **settings)
    shared = Batches(make_corpus(), **settings, devices=5)
    assert alone.planned_shapes == shared.planned_shapes == alone.shapes
    assert alone.padding_share == shared.padding_share
    filled = 0
    for (batch, _), (other, after) in zip(
        alone.iterate(Position()), shared.iterate(Position()), strict=True
    ):
        for name, rows in batch.items():
            assert len(other[name]) % 10 == 0 and len(other[name]) - len(rows) < 10
            np.testing.assert_array_equal(other[name][: len(rows)], rows)
            assert not other[name][len(rows) :].any()
        filled += len(other['labels']) > len(batch['labels'])
        if after.epoch:
            break
    assert filled


@padded_and_packed
@pytest.mark.parametrize('own', [slice(0, 0), slice(1, 4), slice(1, None, 3)], ids=str)
def test_each_process_makes_its_own_rows_of_the_same_batches(packed, own):
    batches = Batches(make_corpus(), tokens=500, max_length=64, packed=packed)
    whole = batches.iterate(Position())
    part = batches.iterate(Position(), lambda rows: np.arange(rows)[own])
    for _ in range(batches.batches_per_epoch):
        (batch, after), (found, found_after) = next(whole), next(part)
        assert found_after == after
        for name, rows in batch.items():
            assert found[name].dtype == rows.dtype
            np.testing.assert_array_equal(found[name], rows[own])


def test_evaluation_batches_contain_every_pair():
    corpus = Corpus(
        RaggedArray.from_rows([[5] * n for n in (3, 0, 700, 17, 2)]),
        RaggedArray.from_rows([[6] * n for n in (900, 1, 0, 4, 2)]),
    )
    found, shapes = {}, set()
    lengths = corpus.lengths().max(axis=1)
    for shape, indices in packing.by_length(lengths, tokens=64, devices=2):
        rows = np.arange(len(indices))
        batch = collate.pairs_batch(corpus, shape, indices, rows)
        assert not batch['source'][len(indices) :].any()
        found |= dict(zip(indices.tolist(), unpack(batch), strict=True))
        shapes.add(batch['labels'].shape)
    assert [found[i] for i in range(5)] == pairs_of(corpus)
    assert shapes == {(2, 1024), (4, 32)}


def test_packed_and_padded_batches_give_the_same_loss_per_token():
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 15, (2, 40))
    sides = (
        [rng.integers(4, tiny.VOCAB, n).tolist() for n in side] for side in lengths
    )
    corpus = Corpus(*map(RaggedArray.from_rows, sides))
    model = tiny.model(dropout=0.0, num_layers=1)
    variables = {'params': tiny.parameters(model)}
    loss = jax.jit(functools.partial(loss_sums, model))
    sums, numbers = {}, {}
    for packed in (False, True):
        batches = Batches(corpus, tokens=128, max_length=16, packed=packed)
        each = [loss(variables, batch) for batch in epoch_of(batches)]
        numbers[packed] = len(each)
        sums[packed] = jax.tree.map(lambda *x: np.sum(x, dtype=np.float64), *each)
    assert numbers[True] < numbers[False]
    assert sums[True].tokens == sums[False].tokens == lengths[1].sum() + 40
    assert sums[True].correct == sums[False].correct
    np.testing.assert_allclose(sums[True].loss, sums[False].loss, rtol=1e-6)
    np.testing.assert_allclose(sums[True].nll, sums[False].nll, rtol=1e-6)


def test_prefetch_keeps_the_order_and_ends_its_thread():
    before = threading.active_count()
    assert list(prefetch(iter(range(10)))) == list(range(10))
    endless = prefetch(itertools.count())
    assert [next(endless), next(endless)] == [0, 1]
    endless.close()
    assert threading.active_count() == before


def test_prefetch_raises_errors_of_its_source_in_order():
    def failing():
        yield 1
        yield 2
        raise UserError('the disk is gone')

    items = prefetch(failing())
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(UserError, match='the disk is gone'):
        next(items)


def test_batch_has_the_special_tokens_of_its_corpus():
    special = SpecialTokens(padding=9, bos=9, eos=0)
    sides = [[[3, 4], [5]], [[6], [7, 8, 1]]]
    corpus = Corpus(
        *map(RaggedArray.from_rows, sides),
        special_tokens=special,
        source_eos=special.eos,
    )
    rows = np.arange(2)
    found = collate.pairs_batch(corpus, (2, 4), rows, rows)
    ended = [[[*row, 0] for row in side] for side in sides]
    expected = make_batch(*ended, bos=9, padding=9)
    for name, array in expected.items():
        length = array.shape[1]
        np.testing.assert_array_equal(found[name][:, :length], array, err_msg=name)
        rest = found[name][:, length:]
        assert (rest == (9 if name in ('source', 'inputs', 'labels') else 0)).all()


@pytest.mark.parametrize(
    ('settings', 'words'),
    [
        ({'max_length': 1}, r'batch\.max_length=1 .*300 training pairs'),
        ({'packed': True}, r'batch\.tokens=30 .*at least 64'),
        (
            {'tokens': 100, 'rows_multiple': 2, 'accumulate': 3},
            r'rows_multiple=2 × .* × train\.accumulate=3\..* at least 240',
        ),
    ],
)
def test_batch_sizes_too_small_for_a_pair_are_rejected_by_field(settings, words):
    with pytest.raises(UserError, match=words):
        Batches(make_corpus(), **{'tokens': 30, 'max_length': 256} | settings)


@pytest.mark.parametrize(
    ('number', 'length', 'tokens', 'devices', 'shape'),
    [
        (512, 61, 512, 1, (8, 64)),
        (512, 61, 512, 4, (32, 64)),
        (9, 61, 512, 4, (16, 64)),
        (3, 61, 512, 4, (4, 64)),  # one row per device
        (9, 61, 512, 1, (8, 64)),  # one shape on one device
        (1, 9, 4096, 1, (1, 16)),
        (5, 9, 4096, 1, (8, 16)),
        (300, 9, 4096, 1, (256, 16)),
    ],
)
def test_evaluation_fills_the_token_budget_of_each_device(
    number, length, tokens, devices, shape
):
    batches = packing.by_length(np.full(number, length), tokens, devices)
    assert {found for found, _ in batches} == {shape}


@pytest.mark.parametrize(('devices', 'others'), [(1, 0), (8, 3)])
def test_sentences_to_translate_have_few_shapes(devices, others):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 201, 4096)
    shapes, found = set(), []
    for shape, indices in packing.by_length(lengths, 4096, devices):
        assert len(indices) <= shape[0] and lengths[indices].max() <= shape[1]
        shapes.add(shape)
        found += indices.tolist()
    assert {length for _, length in shapes} <= {16, 32, 64, 128, 256}
    assert len(shapes) <= 5 + others
    assert sorted(found) == list(range(4096))
