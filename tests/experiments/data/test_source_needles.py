"""Tests of the source `needles`."""

import hashlib
import re

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


def test_sets_have_their_sizes_and_share_no_source():
    data = Needles(pairs=300)
    sets = data.evaluation()
    assert [(x, len(sets[x])) for x in sets] == [('val', 200), ('test', 500)]
    held_out = [source for pairs in sets.values() for source, _ in pairs]
    texts = [source for source, _ in data.train()] + held_out
    assert len(set(texts)) == len(texts)


def test_text_is_the_same_on_every_platform():
    """If you change the pairs on purpose, copy the digest from the failure."""
    pairs = list(Needles(pairs=100).train())
    text = '\n'.join('\t'.join(pair) for pair in pairs)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == 'd72298a25892cd01'
    assert list(Needles(pairs=101).train())[:100] == pairs
    assert list(Needles(pairs=100, seed=1).train()) != pairs


def test_every_word_is_one_token(tmp_path):
    data = sources.load('needles(count=2, pairs=3000)')
    vocabulary = small_runs.train_tokenizer(data, 1000, tmp_path)
    for texts in zip(*data.evaluation()['test'], strict=True):
        for text, ids in zip(texts, vocabulary.encode(list(texts)), strict=True):
            assert len(ids) == len(text.split())
            assert UNK not in ids
