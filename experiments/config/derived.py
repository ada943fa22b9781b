"""What follows from several fields of a config together."""

from experiments.config.schema import ExperimentConfig


def seed(config: ExperimentConfig, name: str) -> int:
    """One of `train`'s seeds: its own value, or `train.seed` where it is empty."""
    own = getattr(config.train, name)
    return config.train.seed if own is None else own


def takes_best(config: ExperimentConfig) -> bool:
    """Whether the best checkpoints are averaged and scored at the end, not the last.

    Where training stops early they are, whatever `evaluation.average_of` says.
    """
    return config.evaluation.average_of == 'best' or config.train.patience > 0
