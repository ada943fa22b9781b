"""Tests of the source `needles`."""

import hashlib
import re
from pathlib import Path

import pytest
import small_runs

from experiments.data import sources
from experiments.data.sources.needles import Needles
from experiments.data.tokenizers.base import UNK


def answer(source, count):
    """Returns the target by the description: needles by place and letter."""
    needles = sorted(re.findall(r'\b([a-j])([xyz])([k-t])\b', source))
    digits = [str('klmnopqrst'.index(value)) for *_, value in needles]
    return ' '.join(
        ''.join(digits[i : i + count]) for i in range(0, len(digits), count)
    )


@pytest.mark.parametrize('count', [1, 2, 3])
def test_targets_are_the_digits_of_the_needles(count):
    data = Needles(count=count, pairs=100)
    pairs = list(data.train())
    assert len(pairs) == 100
    for source, target in pairs:
        words = source.split()
        assert len(words) == count * data.length + data.fillers
        assert len(target.split()) == data.length
        assert target == answer(source, count)
    # Needles are in random order.
    found = {s.split().index(w) for s, _ in pairs for w in s.split() if w[:2] == 'ax'}
    assert len(found) > 5


def test_sets_and_training_share_no_source():
    data = Needles(pairs=300)
    sets = data.evaluation()
    assert {name: len(pairs) for name, pairs in sets.items()} == {
        'val': 200,
        'test': 500,
    }
    held_out = [source for pairs in sets.values() for source, _ in pairs]
    sources_ = [source for source, _ in data.train()] + held_out
    assert len(set(sources_)) == len(sources_)


def test_text_is_the_same_on_every_platform():
    """If you change the pairs on purpose, copy the digest from the failure."""
    text = '\n'.join('\t'.join(pair) for pair in Needles(pairs=100).train())
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == 'd72298a25892cd01'


def test_fewer_pairs_are_the_first_of_more():
    few, more = (list(Needles(pairs=number).train()) for number in (100, 101))
    assert more[:100] == few
    assert list(Needles(pairs=100, seed=1).train()) != few


def test_every_word_is_one_token(tmp_path: Path):
    data = sources.load('needles(count=2, pairs=3000)')
    vocabulary = small_runs.train_tokenizer(data, 1000, tmp_path)
    for name in (0, 1):
        texts = [pair[name] for pair in data.evaluation()['test']]
        for text, ids in zip(texts, vocabulary.encode(texts), strict=True):
            assert len(ids) == len(text.split())
            assert UNK not in ids
