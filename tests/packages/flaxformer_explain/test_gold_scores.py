"""Tests of the scores of explanations."""

import functools
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import published_tokenizers
import pytest
import tiny

from experiments.data import tokenizers
from experiments.data.sources.base import Pair
from experiments.data.tokenizers.base import Tokenizer
from experiments.data.tokenizers.bytes import Bytes
from experiments.errors import UserError
from flaxformer_explain.attributions import Attributor, word_of_piece
from flaxformer_explain.gold_scores import (
    Maps,
    Measured,
    alignment_error_rate,
    average_precision,
    chance_average_precision,
    pool,
    position_maps,
    precision_of_first,
    sentence_counts,
    total,
)
from flaxformer_lite import intervene
from flaxformer_lite.config import build
from flaxformer_lite.training.batch import make_batch
from parallel_grammar import Gold
from parallel_grammar.gold import PHENOMENA, Decision
from parallel_grammar.source import Grammar

# ---- Definitions ---------------------------------------------------------------------


def test_the_alignment_error_rate_is_that_of_och_and_ney():
    sure = {(0, 0), (1, 1)}
    possible = sure | {(2, 1)}
    links = {(0, 0), (2, 1), (2, 2)}
    # |A ∩ S| = 1, |A ∩ P| = 2, |A| + |S| = 5
    assert alignment_error_rate(links, sure, possible) == pytest.approx(1 - 3 / 5)
    assert alignment_error_rate(sure, sure, possible) == 0
    assert alignment_error_rate(possible, sure, possible) == 0
    assert alignment_error_rate({(5, 5)}, sure, possible) == 1


@pytest.mark.parametrize(
    ('values', 'relevant', 'expected'),
    [
        ([0.1, 0.9, 0.5], [0, 1, 0], 1),
        ([0.1, 0.9, 0.5], [1, 0, 1], 0),
        ([0.5, 0.5, 0.5, 0.1], [1, 0, 0, 1], 1 / 3),  # a tie of three
    ],
)
def test_precision_of_the_first_item_is_a_mean_over_ties(values, relevant, expected):
    found = precision_of_first(np.array(values), np.array(relevant, bool))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ('values', 'relevant', 'expected'),
    [
        ([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], 0.5 * 1 + 0.5 * 2 / 3),
        ([4, 3, 2, 1], [0, 1, 0, 1], 0.5 * 1 / 2 + 0.5 * 2 / 4),
        ([1, 1, 0, 0], [1, 0, 1, 0], 0.5 * 1 / 2 + 0.5 * 2 / 4),  # ties are one step
        ([2, 2, 2], [1, 0, 0], 1 / 3),
        ([3, 2, 1], [1, 1, 1], 1),
    ],
)
def test_average_precision_sums_the_steps_of_the_curve(values, relevant, expected):
    found = average_precision(np.array(values), np.array(relevant, bool))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(('items', 'relevant'), [(1, 1), (4, 1), (5, 2), (5, 4)])
def test_the_chance_of_average_precision_is_its_mean_over_all_orders(items, relevant):
    is_relevant = np.arange(items) < relevant
    orders = itertools.permutations(range(items))
    found = [average_precision(np.array(order), is_relevant) for order in orders]
    assert chance_average_precision(items, relevant) == pytest.approx(np.mean(found))


def test_pieces_are_pooled_to_words():
    values_TS = np.array([[1, 2, 4, 8], [3, 0, 0, 8], [0, 0, 7, 8]])
    # The second source word has two pieces. The last pieces belong to no word.
    pooled = pool(values_TS, [0, 0, -1], [0, 1, 1, -1])
    assert pooled.tolist() == [[(1 + 3) / 2, (2 + 4) / 2]]


class Pieces(Tokenizer):
    """A tokenizer of pieces of a list, in which _ is a space."""

    def __init__(self, *pieces):
        self.known = ('', '', '', '', *pieces)

    def decode(self, ids):
        return [''.join(self.known[i] for i in row).replace('_', ' ') for row in ids]


def test_a_piece_belongs_to_the_word_of_its_letters():
    tokenizer = Pieces('Er', '_ruft', '_', 'an', ',', "_Anna's")
    # A word boundary may be a separate piece. 1 is the end, 0 padding.
    ids = [4, 5, 6, 7, 8, 9, 1, 0]
    assert word_of_piece(tokenizer, ids) == [0, 1, -1, 2, -1, 3, -1, -1]


def opened(spec, texts=()):
    tokenizer = tokenizers.make(spec)
    return tokenizer.opened(tokenizer.train(iter(texts)))


class SilentBytes(Bytes):
    """Leaves out incomplete letters, as ByT5 does, and special tokens."""

    def decode(self, ids):
        rows = [bytes(i - 4 for i in row if i > 3) for row in ids]
        return [row.decode(errors='ignore') for row in rows]


@pytest.mark.parametrize('tokenizer', [opened('bytes'), SilentBytes()], ids=repr)
@pytest.mark.parametrize('text', ['Gute Größe!', 'γάτα ¿κοκ?', '日本 ok', 'हिन्दी 😀️ é'])
def test_a_byte_belongs_to_the_word_of_its_letter(tokenizer, text):
    expected = [-1]
    for i, character in enumerate(text):
        is_of_word = character not in ' !¿?😀\ufe0f'
        word = text[:i].count(' ') if is_of_word else -1
        expected += [word] * len(character.encode())
    special = 2  # such as a language, before the text
    ids = [special, *tokenizer.encode([text])[0], 1, 0]
    assert word_of_piece(tokenizer, ids) == [*expected, -1, -1]


def test_bytes_between_pieces_belong_to_the_word_of_their_letter():
    spec = 'sentencepiece(vocab_size=300, byte_fallback=True)'
    tokenizer = opened(spec, ['Die Katze isst', 'Die Katzen essen'] * 9)
    (ids,) = tokenizer.encode(['γDie Kätze, γά'])
    pieces = tokenizer.pieces(ids)
    expected = []
    word = -1
    for piece in pieces:
        word += piece.startswith('▁')
        expected.append(-1 if piece in ('▁', '<0x2C>') else word)
    assert sum(piece.startswith('<0x') for piece in pieces) == 9
    assert word_of_piece(tokenizer, ids) == expected


def test_bytes_of_a_published_tokenizer_belong_to_words(tmp_path):
    pytest.importorskip('transformers')
    tokenizer = published_tokenizers.read('bart', tmp_path / 'bart').tokenizer
    (ids,) = tokenizer.encode(['Größe 東京, é'])
    found = word_of_piece(tokenizer, tokenizer.with_end(ids))
    words = [word for word in found if word >= 0]
    assert set(words) == {0, 1, 2} and words == sorted(words)
    # The start, two spaces, a comma and the end.
    assert len(found) - len(words) <= 5


# ---- Scores of sentences -------------------------------------------------------------

# 'Er ruft den Hund an': the dog decides 'den', and 'ruft' its case.
GOLD = Gold(
    ('He', 'calls', 'the', 'dog'),
    ('Er', 'ruft', 'den', 'Hund', 'an'),
    frozenset({(0, 0), (1, 1), (2, 2), (3, 3), (1, 4)}),
    frozenset({(0, 0), (1, 1), (2, 2), (3, 3), (1, 4)}),
    (
        Decision(2, 'gender', (3,), (3,)),
        Decision(2, 'case', (1,), (1,)),
    ),
)


def test_a_decision_ranks_source_words_without_its_translation_and_earlier_words():
    source = np.zeros((5, 4))
    target = np.zeros((5, 5))
    # 'den' points at its translation most, then at the dog.
    source[2] = [0.1, 0.2, 0.9, 0.3]
    # Of target words, at itself most and at later words. Of earlier words, at 'ruft'.
    target[2] = [0.1, 0.2, 0.9, 0.8, 0.7]
    found = total([sentence_counts(GOLD, Maps(source, target))])
    assert found[Measured('source', 'gender', 'p@1')].value == 1
    assert found[Measured('source', 'case', 'p@1')].value == 0
    assert found[Measured('source', 'case', 'ap')].value == 1 / 2
    assert found[Measured('source', 'case', 'p@1')].chance == pytest.approx(1 / 3)
    assert found[Measured('target', 'case', 'p@1')].value == 1
    assert found[Measured('target', 'case', 'p@1')].chance == pytest.approx(1 / 2)
    # The dog comes after 'den', so no map of earlier words could point at it.
    assert Measured('target', 'gender', 'p@1') not in found


@functools.cache
def of_test() -> list[tuple[Pair, Gold]]:
    """Returns the pairs of the grammar's test set, with their gold."""
    source = Grammar(pairs=100)
    return list(zip(source.evaluation()['test'], source.gold()['test'], strict=True))


def test_the_baseline_of_positions_points_at_the_nearest_words():
    maps = position_maps(GOLD)
    # Starts of words, in parts of the sentence: 0, .2, .4, .6, .8 and 0, .25, .5, .75
    assert maps.source.argmax(1).tolist() == [0, 1, 2, 2, 3]
    assert maps.target[3][:3].argmax() == 2


def golds() -> list[Gold]:
    return [gold for _, gold in of_test()[:200]]


def oracle(gold: Gold, phenomenon: str) -> Maps:
    """Returns maps that point at the gold of one phenomenon alone."""
    source = np.zeros((len(gold.target), len(gold.source)))
    target = np.zeros((len(gold.target),) * 2)
    if phenomenon == 'alignment':
        for i, j in gold.sure:
            source[j, i] = 1
    for decision in gold.decisions:
        if decision.phenomenon == phenomenon:
            source[decision.target, list(decision.sources)] = 1
            target[decision.target, list(decision.targets)] = 1
    return Maps(source, target)


@pytest.mark.parametrize('phenomenon', ['alignment', *PHENOMENA])
def test_an_oracle_scores_one(phenomenon):
    counts = [sentence_counts(gold, oracle(gold, phenomenon)) for gold in golds()]
    found = {k: x for k, x in total(counts).items() if k.phenomenon == phenomenon}
    assert found
    for key, score in found.items():
        if key.metric == 'aer':
            # Some words have no translation, and others have two.
            assert score.value < 0.12
        else:
            assert (score.value, score.low, score.high) == (1, 1, 1)
            assert score.chance < 0.8


def is_chance(score) -> bool:
    """Returns whether a score is within four standard errors of chance."""
    return abs(score.value - score.chance) < 4 * (score.high - score.low) / 3.92


def test_random_maps_score_chance():
    rng = np.random.default_rng(0)
    counts = []
    for gold in golds():
        words = len(gold.target)
        source = rng.random((words, len(gold.source)))
        counts.append(sentence_counts(gold, Maps(source, rng.random((words, words)))))
    for key, score in total(counts).items():
        assert is_chance(score) or score.count < 30, (key, score)


def test_shuffled_oracles_score_chance():
    rng = np.random.default_rng(0)
    counts = []
    for gold in golds():
        source = oracle(gold, 'alignment').source
        maps = Maps(rng.permuted(source, axis=1), np.eye(len(source)))
        counts.append(sentence_counts(gold, maps))
    found = total(counts)
    for metric in ('p@1', 'aer'):
        assert is_chance(found[Measured('source', 'alignment', metric)])


def test_an_interval_has_the_width_of_the_standard_error():
    """Checks the bootstrap against √(p(1 − p) / n) of a proportion."""
    rng = np.random.default_rng(0)
    key = Measured('source', 'alignment', 'p@1')
    values = rng.random(400) < 0.3
    score = total([{key: (float(x), 1.0, 0.5)} for x in values])[key]
    error = np.sqrt(values.mean() * (1 - values.mean()) / 400)
    assert score.value == pytest.approx(values.mean())
    assert (score.high - score.low) / 3.92 == pytest.approx(error, rel=0.1)


# ---- Attributions of models ----------------------------------------------------------


class Words(Tokenizer):
    """A tokenizer of words, split at spaces."""

    def __init__(self, sentences):
        words = {word for text in sentences for word in text.split()}
        self.known = ['', '', '', '', *sorted(words)]

    def encode(self, texts):
        return [[self.known.index(word) for word in text.split()] for text in texts]

    def decode(self, ids):
        return [' '.join(self.known[i] for i in row if i > 3) for row in ids]


def run_of(pairs, **config: Any) -> Any:
    """Returns a run with random parameters, and a word as each token."""
    tokenizer = Words(text for pair in pairs for text in pair)
    model = build.model(tiny.config(dropout=0.0, **config), len(tokenizer.known))

    def batch(pairs, length=None):
        source = [tokenizer.with_end(tokenizer.encode([s])[0]) for s, _ in pairs]
        target = [[*tokenizer.encode([t])[0], 1] for _, t in pairs]
        return make_batch(source, target, length=length)

    return SimpleNamespace(
        path='runs/tiny',
        tokenizer=tokenizer,
        model=model,
        variables=tiny.all_variables(model),
        batch=batch,
    )


def scores_of(run, pairs, of_pairs) -> dict[str, dict]:
    explain = Attributor(run)
    counts: dict[str, list] = {}
    for pair, gold in zip(pairs, of_pairs, strict=True):
        for method, maps in explain(pair).items():
            counts.setdefault(method, []).append(sentence_counts(gold, maps))
    return {method: total(found) for method, found in counts.items()}


def grammar_pairs(count: int, keep=lambda gold: True):
    """Returns short pairs, whose programs have one shape, and their gold."""
    short = [both for both in of_test() if len(both[1].target) <= 8]
    kept = [(pair, gold) for pair, gold in short if keep(gold)][:count]
    return [pair for pair, _ in kept], [gold for _, gold in kept]


ALIGNED = Measured('source', 'alignment', 'p@1')


@pytest.mark.slow
def test_a_random_model_scores_chance():
    pairs, of_pairs = grammar_pairs(30)
    for method, found in scores_of(run_of(pairs), pairs, of_pairs).items():
        assert is_chance(found[ALIGNED]), method


def word_for_word(gold: Gold) -> bool:
    return gold.possible == {(i, i) for i in range(len(gold.target))}


def test_all_methods_find_attention_that_copies_word_for_word():
    """In one layer, the source reaches a target word only through the copied word."""
    pairs, of_pairs = grammar_pairs(8, word_for_word)
    run = run_of(pairs, num_layers=1)

    def copying(value, where):
        eye = np.eye(*value.shape[-2:], dtype=np.float32)
        return np.broadcast_to(eye, value.shape) * where.mask_BT.any()

    names = ['encoder/*/self_attention/pattern', 'decoder/*/cross_attention/pattern']
    with intervene(dict.fromkeys(names, copying)):
        found = scores_of(run, pairs, of_pairs)
    assert len(found) == 7
    for method, scores in found.items():
        assert scores[ALIGNED].value == 1, method


def test_a_run_without_weights_or_cross_attention_is_an_error():
    pairs, _ = grammar_pairs(1)
    with pytest.raises(UserError, match='not an encoder-decoder'):
        Attributor(run_of(pairs, architecture='decoder_only'))
    explain = Attributor(run_of(pairs, attention='blockwise'))
    with pytest.raises(UserError, match='does not store weights'):
        explain(pairs[0])
