"""Early stopping: training ends when the dev score has not risen for so many evaluations.

What is counted is part of `Progress`, which every checkpoint holds: a run that is killed and goes
on ends where it would have ended.
"""

from experiments.command_line.errors import UserError
from experiments.config.schema import ExperimentConfig
from experiments.training.metrics import Progress


def count(progress: Progress, score: float) -> None:
    """Another evaluation has this score; the higher the better, an equal one is no better."""
    if progress.best_score is None or score > progress.best_score:
        progress.best_score = score
        progress.since_best = 0
    else:
        progress.since_best += 1


def is_due(progress: Progress, patience: int) -> bool:
    """Whether to stop after `patience` evaluations without a better score; 0: never."""
    return 0 < patience <= progress.since_best


def takes_best(config: ExperimentConfig) -> bool:
    """Whether the best checkpoints are scored at the end, and not the last."""
    return config.evaluation.average_of == 'best' or config.train.patience > 0


def check(config: ExperimentConfig) -> None:
    """Raises UserError if a run would wait for evaluations that never come."""
    if config.train.patience and not config.evaluation.every:
        raise UserError(
            f'train.patience={config.train.patience} counts evaluations, and with '
            'evaluation.every=0 there is one, at the end: raise evaluation.every'
        )
