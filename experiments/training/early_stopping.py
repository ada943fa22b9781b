"""Early stopping: training ends when the dev score has not risen for N evaluations.

The counter is a part of `Progress`, which every checkpoint holds: a run that is killed
and resumed ends at the same step.
"""

from experiments.training.metrics import Progress


def count(progress: Progress, score: float) -> None:
    """Counts one more evaluation; an equal score is no improvement."""
    if progress.best_score is None or score > progress.best_score:
        progress.best_score = score
        progress.since_best = 0
    else:
        progress.since_best += 1


def is_due(progress: Progress, patience: int) -> bool:
    """Whether `patience` evaluations in a row were no better; 0 means never."""
    return 0 < patience <= progress.since_best
