"""What follows from several fields of a config together."""

import dataclasses
import re

from experiments.config.schema import ExperimentConfig, TrainConfig

# The fields of `train` by which runs of the same experiment differ.
SEEDS = ('seed', 'init_seed', 'data_seed', 'dropout_seed')


def seed(config: ExperimentConfig, name: str) -> int:
    """One of `train`'s seeds: its own value, or `train.seed` where it is empty."""
    own = getattr(config.train, name)
    return config.train.seed if own is None else own


def without_seeds(config: ExperimentConfig) -> ExperimentConfig:
    """The config with its seeds as they are by default."""
    defaults = TrainConfig()
    seeds = {name: getattr(defaults, name) for name in SEEDS}
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **seeds))


def with_seed(config: ExperimentConfig, value: int) -> ExperimentConfig:
    """The config with another `train.seed`."""
    return dataclasses.replace(
        config, train=dataclasses.replace(config.train, seed=value)
    )


def takes_best(config: ExperimentConfig) -> bool:
    """Whether the best checkpoints are averaged and scored at the end, not the last.

    Where training stops early they are, whatever `evaluation.average_of` says.
    """
    return config.evaluation.average_of == 'best' or config.train.patience > 0


def profiled_steps(config: ExperimentConfig) -> tuple[int, int] | None:
    """The first and the last step of `train.profile`; None for none.

    Raises:
      ValueError: it does not name them.
    """
    text = config.train.profile
    if not text:
        return None
    steps = re.fullmatch('([0-9]{1,9}):([0-9]{1,9})', text)
    if steps is None or not 1 <= int(steps[1]) <= int(steps[2]):
        raise ValueError
    return int(steps[1]), int(steps[2])
