"""Tests of the scores of explanations against their definitions."""

import functools
import itertools

import numpy as np
import pytest

from experiments.data.sources.base import Pair
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
from parallel_grammar import Gold
from parallel_grammar.gold import PHENOMENA, Decision
from parallel_grammar.source import Grammar


def test_alignment_error_rate_matches_och_and_ney():
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
    precision = precision_of_first(np.array(values), np.array(relevant, bool))
    assert precision == pytest.approx(expected)


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
    precision = average_precision(np.array(values), np.array(relevant, bool))
    assert precision == pytest.approx(expected)


@pytest.mark.parametrize(('items', 'relevant'), [(1, 1), (4, 1), (5, 2), (5, 4)])
def test_chance_of_average_precision_is_its_mean_over_all_orders(items, relevant):
    is_relevant = np.arange(items) < relevant
    orders = itertools.permutations(range(items))
    precisions = [average_precision(np.array(order), is_relevant) for order in orders]
    chance = chance_average_precision(items, relevant)
    assert chance == pytest.approx(np.mean(precisions))


def test_pooling_sums_over_source_pieces_and_averages_target_pieces():
    values_TS = np.array([[1, 2, 4, 8], [3, 0, 0, 8], [0, 0, 7, 8]])
    # The second source word has two pieces. The last pieces belong to no word.
    pooled = pool(values_TS, [0, 0, -1], [0, 1, 1, -1])
    assert pooled.tolist() == [[(1 + 3) / 2, (2 + 4) / 2]]


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


def test_decisions_rank_other_source_words_and_earlier_target_words():
    source = np.zeros((5, 4))
    target = np.zeros((5, 5))
    # 'den' points at its translation most, then at the dog.
    source[2] = [0.1, 0.2, 0.9, 0.3]
    # 'den' points at itself and later words most, and then at 'ruft'.
    target[2] = [0.1, 0.2, 0.9, 0.8, 0.7]
    scores = total([sentence_counts(GOLD, Maps(source, target))])
    assert scores[Measured('source', 'gender', 'p@1')].value == 1
    assert scores[Measured('source', 'case', 'p@1')].value == 0
    assert scores[Measured('source', 'case', 'ap')].value == 1 / 2
    assert scores[Measured('source', 'case', 'p@1')].chance == pytest.approx(1 / 3)
    assert scores[Measured('target', 'case', 'p@1')].value == 1
    assert scores[Measured('target', 'case', 'p@1')].chance == pytest.approx(1 / 2)
    # The dog comes after 'den', so no map of earlier words could point at it.
    assert Measured('target', 'gender', 'p@1') not in scores


def test_baseline_of_positions_points_at_the_nearest_words():
    maps = position_maps(GOLD)
    # Words start at 0, .2, .4, .6, .8 and 0, .25, .5, .75 of their sentence.
    assert maps.source.argmax(1).tolist() == [0, 1, 2, 2, 3]
    assert maps.target[3][:3].argmax() == 2


@functools.cache
def gold_pairs() -> list[tuple[Pair, Gold]]:
    """Returns the pairs of the grammar's test set, with their gold."""
    source = Grammar(pairs=100)
    return list(zip(source.evaluation()['test'], source.gold()['test'], strict=True))


def golds() -> list[Gold]:
    return [gold for _, gold in gold_pairs()[:200]]


def oracle(gold: Gold, phenomenon: str) -> Maps:
    """Returns maps that point at the gold of one phenomenon only."""
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


@pytest.mark.ci
@pytest.mark.parametrize('phenomenon', ['alignment', *PHENOMENA])
def test_an_oracle_scores_one(phenomenon):
    scores = total([sentence_counts(x, oracle(x, phenomenon)) for x in golds()])
    scores = {k: x for k, x in scores.items() if k.phenomenon == phenomenon}
    assert scores
    for key, score in scores.items():
        if key.metric == 'aer':
            # Some words have no translation, and others have two.
            assert score.value < 0.12
        else:
            assert (score.value, score.low, score.high) == (1, 1, 1)
            assert score.chance < 0.8


def is_chance(score) -> bool:
    """Returns whether a score is within four standard errors of chance."""
    return abs(score.value - score.chance) < 4 * (score.high - score.low) / 3.92


def test_random_maps_and_shuffled_oracles_score_chance():
    rng = np.random.default_rng(0)
    random, shuffled = [], []
    for gold in golds():
        size = len(gold.target)
        maps = Maps(rng.random((size, len(gold.source))), rng.random((size, size)))
        random.append(sentence_counts(gold, maps))
        source = rng.permuted(oracle(gold, 'alignment').source, axis=1)
        shuffled.append(sentence_counts(gold, Maps(source, np.eye(size))))
    for key, score in total(random).items():
        assert is_chance(score) or score.count < 30, (key, score)
    for metric in ('p@1', 'aer'):
        assert is_chance(total(shuffled)[Measured('source', 'alignment', metric)])


def test_bootstrap_interval_matches_the_standard_error_of_a_proportion():
    rng = np.random.default_rng(0)
    key = Measured('source', 'alignment', 'p@1')
    values = rng.random(400) < 0.3
    score = total([{key: (float(x), 1.0, 0.5)} for x in values])[key]
    error = np.sqrt(values.mean() * (1 - values.mean()) / 400)
    assert score.value == pytest.approx(values.mean())
    assert (score.high - score.low) / 3.92 == pytest.approx(error, rel=0.1)
