"""Tests of training progress and early stops."""

import math

import pytest

from experiments.training.metrics import Progress, stops_early
from flaxformer_lite.ops.loss_of_logits import LossSums
from flaxformer_lite.training.train_step import Metrics


def test_row_has_means_over_target_tokens_and_steps():
    progress = Progress('digest of the text')
    for step, loss, tokens in ((1, 20.0, 10.0), (2, 30.0, 30.0)):
        others = {'z_loss': loss / 4}
        sums = LossSums(loss, nll=loss / 2, correct=5.0, tokens=tokens, others=others)
        progress.add(step, progress.position, Metrics(sums, gradient_norm=float(step)))
    assert progress.settle() == []
    row = progress.row()
    assert (row['loss'], row['accuracy'], row['gradient_norm']) == (1.25, 0.25, 1.5)
    assert row['perplexity'] == math.exp(25 / 40)
    assert row['loss/z_loss'] == 12.5 / 40


@pytest.mark.parametrize(
    ('loss', 'gradient_norm', 'scale', 'is_divergence'),
    [
        (20.0, math.inf, 2.0, False),
        (20.0, math.nan, 1.0, True),
        (math.nan, math.nan, 2.0, True),
    ],
)
def test_step_diverges_if_no_smaller_loss_scale_can_fix_it(
    loss, gradient_norm, scale, is_divergence
):
    progress = Progress('digest of the text')
    sums = LossSums(loss, nll=loss, correct=5.0, tokens=10.0)
    metrics = Metrics(sums, gradient_norm, loss_scale=scale)
    progress.add(1, progress.position, metrics)
    expected = [(1, progress.position)] if is_divergence else []
    assert progress.settle() == expected
    resumed = Progress.of(progress.metadata())
    assert resumed.row()['skipped'] == progress.row()['skipped'] == 1


def test_checkpoint_metadata_restores_the_progress():
    progress = Progress('digest', (1, 2), 3.0, 4, {'loss': 5.0}, cpu_seconds=6.0)
    metadata = progress.metadata()
    later = {'rows': {}, 'base': {'run': 'a', 'sha256': 'b'}}
    assert Progress.of(metadata | later).metadata() == metadata


def test_early_stop_waits_for_patience_evaluations_without_a_better_score():
    scores = {}
    stops = []
    for step, score in enumerate((1.0, 3.0, 3.0, 2.0, 4.0, 0.0, 0.0)):
        scores[step] = score
        stops.append(stops_early(scores, patience=2))
    assert stops == [False, False, False, True, False, False, True]
    assert not stops_early(scores, patience=0)
