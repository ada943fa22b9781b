"""The fields of an experiment's config: type, default, range and meaning of each.

Checks, errors, `--help` and the table in the documentation are generated from the
annotations: `Annotated[type, Range or Choices, help]`. If you add a field, also raise
`load.VERSION`, and write the table:

python -m experiments.config.schema >docs/reference/configs.md
"""

import dataclasses
import functools
import typing
from typing import Annotated, Any, NamedTuple

from experiments import registries
from experiments.errors import user_errors
from flaxformer_lite import validation
from flaxformer_lite.config.schema import ModelConfig, Section, checked, leaves
from flaxformer_lite.config.spec import Component, Folder
from flaxformer_lite.remat import Remat
from flaxformer_lite.validation import (
    Choices,
    Epsilon,
    NotNegative,
    Pattern,
    Range,
    Rate,
    Size,
)

Count = Annotated[int, Range(at_least=0)]
Seed = Annotated[int, Range(at_least=0, below=2**32)]
SeedOrEmpty = Annotated[int | None, Range(at_least=0, below=2**32)]


def check_value(name: str, annotation: Any, value: Any) -> None:
    """Raises UserError for an invalid value of a field or a flag."""
    with user_errors():
        checked(name, annotation, value, registries.folder(name))


class ConfigSection(Section):
    """Base class of the sections."""

    def __post_init__(self):
        with user_errors():
            super().__post_init__()

    @classmethod
    def folder(cls, name: str) -> Folder | None:
        return registries.folder(name)


@dataclasses.dataclass(frozen=True)
class BatchConfig(ConfigSection):
    """Size and kind of training batches."""

    NAME = 'batch'

    tokens: Annotated[
        Size,
        'target tokens per batch over all devices, padding included: rows × length',
    ] = 25_000
    max_length: Annotated[
        int,
        Range(at_least=2, at_most=2**20),
        'skips training pairs with a longer side; evaluation uses all pairs',
    ] = 256
    packed: Annotated[
        bool, 'pack several pairs into a row; False: batch pairs of similar length'
    ] = True
    rows_multiple: Annotated[
        Size, 'rounds the rows of a batch to a multiple, such as the number of devices'
    ] = 1


@dataclasses.dataclass(frozen=True)
class MeshConfig(ConfigSection):
    """The device mesh; a run may be resumed with another one."""

    NAME = 'mesh'

    data: Annotated[
        int | None,
        Range(at_least=1),
        'devices for data parallelism; empty: all remaining devices',
    ] = None
    fsdp: Annotated[Size, 'devices that shard the rows and the parameters (FSDP)'] = 1
    tensor: Annotated[Size, 'devices that shard heads, d_ff and the vocabulary'] = 1


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(ConfigSection):
    """The optimizer and its learning rates (paper §5.3)."""

    NAME = 'optimizer'

    name: Annotated[
        Component,
        "adam, adamw or another Optax optimizer with its arguments: 'lion(b1=0.95)'",
    ] = Component.of('adam')
    b1: Annotated[Rate, 'decay of the first moment; adam and adamw only'] = 0.9
    b2: Annotated[Rate, 'decay of the second moment; adam and adamw only'] = 0.98
    # With 0, a zero gradient would give 0 / 0.
    eps: Annotated[Epsilon, 'added to the denominator; adam and adamw only'] = 1e-9
    weight_decay: Annotated[NotNegative, 'weight decay; adamw only'] = 0.0
    clip: Annotated[
        NotNegative, 'maximum global norm of the gradient; 0: no clipping'
    ] = 0.0
    schedule: Annotated[Component, 'learning rate schedule'] = Component.of(
        'noam(warmup=4000)'
    )


@dataclasses.dataclass(frozen=True)
class TrainConfig(ConfigSection):
    """Length, loss and random seeds of training."""

    NAME = 'train'

    steps: Annotated[
        Count,
        'updates; training ends at steps or epochs, whichever is first; 0: no limit',
    ] = 100_000
    epochs: Annotated[Count, 'passes over the training pairs; 0: no limit'] = 0
    patience: Annotated[
        Count,
        'stops after so many evaluations without a better dev score, and scores the '
        'best checkpoints; 0: never',
    ] = 0
    loss: Annotated[
        Component,
        "a file in flaxformer_lite/losses/; '[cross_entropy, z_loss]' is their sum",
    ] = Component.of('cross_entropy(label_smoothing=0.1)')
    teacher: Annotated[
        str,
        'directory of the teacher run for the loss distillation',
    ] = ''
    seed: Annotated[Seed, 'default of the other seeds'] = 0
    init_seed: Annotated[SeedOrEmpty, 'seed of the initialization; empty: seed'] = None
    data_seed: Annotated[SeedOrEmpty, 'seed of the data order; empty: seed'] = None
    dropout_seed: Annotated[SeedOrEmpty, 'seed of dropout; empty: seed'] = None
    freeze: Annotated[
        validation.Regex,
        'does not train parameters whose path matches',
    ] = ''
    ema: Annotated[
        Rate,
        'decay of an exponential moving average of the parameters, which evaluation '
        'uses instead; 0: none',
    ] = 0.0
    accumulate: Annotated[Size, 'gradient accumulation: microbatches per batch'] = 1
    remat: Annotated[
        Remat,
        'rematerialization, to save memory: none, whole blocks, or by a policy of '
        'jax.checkpoint_policies',
    ] = 'none'
    check_parts: Annotated[
        bool,
        'test your own components with the quick contracts of `experiments.check` '
        'before training',
    ] = True
    on_nonfinite: Annotated[
        str,
        Choices('stop', 'skip'),
        'stop, or skip the update, if the loss or gradient is not finite',
    ] = 'stop'
    log_every: Annotated[Size, 'steps between logged metrics'] = 100
    hooks: Annotated[
        Component,
        "trackers, files in experiments/hooks/: '[tensorboard, wandb]' is both, '[]' "
        'none',
    ] = Component.of('tensorboard')


@dataclasses.dataclass(frozen=True)
class EvaluationConfig(ConfigSection):
    """When to score, and how to translate."""

    NAME = 'evaluation'

    every: Annotated[
        Count, 'steps between evaluations of the dev set; 0: at the end only'
    ] = 5_000
    sets: Annotated[str, 'sets to score at the end, comma-separated; empty: all'] = ''
    metrics: Annotated[
        Component, 'metrics of translations: files in experiments/metrics/'
    ] = Component.of('[bleu, chrf]')
    best: Annotated[
        str, 'metric that selects the best checkpoints; empty: the first metric'
    ] = ''
    decode: Annotated[
        Component, 'decoding strategy: a file in flaxformer_lite/decoding/strategies/'
    ] = Component.of('beam(beams=4, alpha=0.6)')
    processors: Annotated[
        Component | None,
        'logits processors: files in flaxformer_lite/decoding/processors/',
    ] = None
    extra_length: Annotated[
        int,
        Range(at_least=1, at_most=2**20),
        'maximum length of a translation minus the length of its source, in tokens',
    ] = 50
    average: Annotated[
        Size, 'number of checkpoints to average for the final scores'
    ] = 5
    average_of: Annotated[
        str, Choices('last', 'best'), 'average the last or the best checkpoints'
    ] = 'last'
    batch_tokens: Annotated[
        Size, 'tokens per evaluation batch and device, padding included'
    ] = 8_192


@dataclasses.dataclass(frozen=True)
class CheckpointConfig(ConfigSection):
    """When to save checkpoints, and how many to keep."""

    NAME = 'checkpoint'

    every: Annotated[Size, 'steps between checkpoints'] = 1_500
    keep: Annotated[Size, 'number of newest checkpoints to keep'] = 5
    keep_best: Annotated[
        Count, 'number of checkpoints with the best dev scores to keep'
    ] = 1


@dataclasses.dataclass(frozen=True)
class ExperimentConfig(ConfigSection):
    """All fields of an experiment. Defaults: the paper's base model and training."""

    data: Annotated[Component, 'data source: a file in experiments/data/sources/'] = (
        Component.of('tfds(name="wmt14_translate/de-en", source="en", target="de")')
    )
    filters: Annotated[
        Component | None,
        'filters of training pairs, files in experiments/data/filters/: '
        "'[length_ratio(most=3), duplicates]'",
    ] = None
    tokenizer: Annotated[
        Component,
        'tokenizer, a file in experiments/data/tokenizers/; in brackets, one for the '
        'source and one for the target',
    ] = Component.of('sentencepiece(vocab_size=37000)')
    objective: Annotated[
        Component | None,
        'self-supervised objective on one side of the pairs, a file in '
        'experiments/data/objectives/; empty: translation',
    ] = None
    init_from: Annotated[
        str,
        'run to initialize parameters and tokenizer from: its directory, or the name '
        'of a checkpoint on the Hugging Face Hub',
    ] = ''
    init_average: Annotated[
        int | None,
        Range(at_least=1),
        'number of checkpoints of init_from to average; empty: as in its config',
    ] = None
    init_ignore: Annotated[
        validation.Regex,
        'does not initialize parameters whose path matches from init_from',
    ] = ''
    batch: BatchConfig = BatchConfig()
    mesh: MeshConfig = MeshConfig()
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig = TrainConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    def values(self) -> dict[str, Any]:
        """Returns all values by name, in the order of `fields`; components as text."""
        found = {name: self.get(name) for name in fields()}
        return {k: x.text if isinstance(x, Component) else x for k, x in found.items()}

    def to_dict(self) -> dict[str, Any]:
        """Returns every field, nested, with components as text."""
        nested: dict[str, Any] = {}
        for name, value in self.values().items():
            *within, key = name.split('.')
            section = nested
            for part in within:
                section = section.setdefault(part, {})
            section[key] = value
        return nested


class Field(NamedTuple):
    """A field of the config."""

    kind: Any  # its annotation, for checking values
    default: Any
    help: str  # its meaning in one line

    @property
    def is_component(self) -> bool:
        return Component in validation.types_of(self.kind)

    @property
    def type(self) -> type:
        """The type of the value in a config file."""
        return str if self.is_component else validation.types_of(self.kind)[0]


@functools.cache
def fields() -> dict[str, Field]:
    """Returns all fields by name."""
    found = {}
    for name, field in leaves(ExperimentConfig).items():
        *_, meaning = typing.get_args(field.type)
        found[name] = Field(field.type, field.default, meaning)
    return found


def short_name(field: str) -> str:
    """Returns a field without its first section, `cross.attention`, if that is unique.

    `checkpoint.every` stays, because of `evaluation.every`.
    """
    short = _without_first_section(field)
    candidates = [name for name in fields() if _without_first_section(name) == short]
    return short if len(candidates) <= 1 else field


def _without_first_section(field: str) -> str:
    return field.partition('.')[2] or field


def part_fields() -> list[str]:
    """Returns the fields that name a component: `'data'`, `'model.attention'`."""
    return [name for name, field in fields().items() if field.is_component]


def sections() -> list[str]:
    """Returns the names of the sections: `model`, `model.decoder`, …."""
    names = dict.fromkeys(name.rpartition('.')[0] for name in fields())
    return list(filter(None, names))


def allowed(kind: Any) -> str:
    """Describes an annotation's allowed values: `int, at least 1; or empty`."""
    limit = validation.limit_of(kind)
    kinds = validation.types_of(kind)
    words = ' or '.join(x.__name__ for x in kinds if x is not type(None))
    if Component in kinds:
        words = 'a name'
    if isinstance(limit, Choices):
        words = ', '.join(limit.words)
    if isinstance(limit, Pattern):
        words = 'a regular expression; or empty'
    if isinstance(limit, Range):
        words = f'{words}, {limit.words()}'
    if type(None) in kinds:
        words = f'{words}; or empty'
    return words


def display(value: Any) -> str:
    """Formats a value for a message or a table."""
    return '(empty)' if value in (None, '') else str(value)


def seed(config: ExperimentConfig, name: str) -> int:
    """Returns one of `train`'s seeds; an empty one defaults to `train.seed`."""
    own = getattr(config.train, name)
    return config.train.seed if own is None else own


def without_seeds(config: ExperimentConfig) -> ExperimentConfig:
    seeds: Any = dict(seed=0, init_seed=None, data_seed=None, dropout_seed=None)
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **seeds))


def takes_best(config: ExperimentConfig) -> bool:
    """Returns whether the final scores average the best checkpoints, not the last.

    Early stopping (`train.patience`) implies this.
    """
    return config.evaluation.average_of == 'best' or config.train.patience > 0


_TABLE = """# The fields of a config

Generated by `python -m experiments.config.schema >docs/reference/configs.md` from
[`experiments/config/schema.py`](../../experiments/config/schema.py) and
[`flaxformer_lite/config/schema.py`](../../flaxformer_lite/config/schema.py).

A config file sets the fields that differ from their defaults. Override any field on the
command line: `--config.model.num_heads=4`. The defaults are the paper's base model and
training. `python -m experiments.run --config=… --help` lists the same fields with their
values in a config, and the components that they can name.
"""


def markdown() -> str:
    """Returns the documentation's table of all fields."""
    lines = [_TABLE]
    for section in ['', *sections()]:
        if section:
            lines += [f'## `{section}`', '']
        lines += ['| field | default | may be | meaning |', '|---|---|---|---|']
        for name, (kind, default, meaning) in fields().items():
            if name.rpartition('.')[0] == section:
                default = f'`{display(default)}`'
                lines.append(f'| `{name}` | {default} | {allowed(kind)} | {meaning} |')
        lines.append('')
    return '\n'.join(lines)


if __name__ == '__main__':
    print(markdown(), end='')
