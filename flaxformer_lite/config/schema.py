"""The fields of a `model` config."""

import dataclasses
import operator
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from flaxformer_lite import validation
from flaxformer_lite.config.spec import Component, Folder
from flaxformer_lite.sizes import (
    DEPTH,
    HEADS,
    WIDTH,
    Role,
    Sizes,
    cross_sizes_of,
    deciding_field,
    sizes_of,
    value_of,
)
from flaxformer_lite.validation import Choices, Range, Rate

# The folder and the base class of each kind of field. A list is a pattern over layers;
# one object of the kinds without lists serves all layers.
FOLDERS = {
    'architecture': Folder('flaxformer_lite.models', 'Model'),
    'attention': Folder('flaxformer_lite.attention', 'Attention', lists=True),
    'positions': Folder('flaxformer_lite.positions', 'Positions', lists=True),
    'norm': Folder('flaxformer_lite.norms', 'Norm', lists=True),
    'residual': Folder('flaxformer_lite.residual', 'Residual', lists=True),
    'feed_forward': Folder('flaxformer_lite.feed_forward', 'FeedForward', lists=True),
    'block': Folder('flaxformer_lite.layers.blocks', 'Block', lists=True),
    'init': Folder('flaxformer_lite.init', 'Init'),
    'dense': Folder('flaxformer_lite.layers.dense', 'Dense'),
}

# Fields that have another name in a model's class, or are in a group.
NAMES_IN_CLASSES = {
    'attention_bias': 'projections.bias',
    'projections': 'projections.self_attention',
    'continuous_positions': 'decoder.continuous_positions',
    'merged_attention': 'decoder.merged_attention',
    'dropout': 'dropout.sublayers',
    'dropout_kind': 'dropout.whole_tokens',
    'head_dropout': 'dropout.heads',
    'layer_drop': 'dropout.layers',
    'init': 'initializer',
    'tie': 'embeddings.tie',
    'scale_embeddings': 'embeddings.scale',
    'output_bias': 'embeddings.output_bias',
    'scale_logits': 'embeddings.scale_logits',
    'logit_cap': 'embeddings.logit_cap',
}

DTYPES = Choices('float32', 'bfloat16', 'float16')


def folder(field: str) -> Folder:
    """Returns the folder of a field: that of `'norm'` for `'decoder.norm'`."""
    return FOLDERS[field.rpartition('.')[2]]


def leaves(section: Any, prefix: str = '') -> dict[str, dataclasses.Field]:
    """Returns the fields of a section by name, with those of its sections."""
    found = {}
    for field in dataclasses.fields(section):
        name = prefix + field.name
        if dataclasses.is_dataclass(field.type):
            found |= leaves(field.type, f'{name}.')
        else:
            found[name] = field
    return found


def of_flat(section: Any, values: Mapping[str, Any], prefix: str = '') -> Any:
    """Returns a section with values by name; others have their defaults."""
    given = {}
    for field in dataclasses.fields(section):
        name = prefix + field.name
        if dataclasses.is_dataclass(field.type):
            given[field.name] = of_flat(field.type, values, f'{name}.')
        elif name in values:
            given[field.name] = values[name]
    return section(**given)


def checked(
    name: str, annotation: Any, value: Any, folder: Folder | None = None
) -> Any:
    """Returns the value of a field; a spec becomes a `Component` of the folder.

    Raises:
      ValueError: The value is invalid, or the spec is malformed; names the field.
    """
    kinds = validation.types_of(annotation)
    if Component not in kinds:
        validation.check(name, annotation, value)
        return value
    if value is None and type(None) in kinds:
        return None
    with validation.naming(name):
        # Raises for None if the field requires a component.
        return Component.of(value, folder)  # pyright: ignore[reportArgumentType]


class Section:
    """A section of the config, a dataclass whose fields are checked."""

    NAME: ClassVar[str] = ''  # in error messages

    def __post_init__(self):
        # Sections are dataclasses, but this base class is not.
        for field in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]
            if not dataclasses.is_dataclass(field.type):
                name = f'{self.NAME}.{field.name}'.lstrip('.')
                value = getattr(self, field.name)
                value = checked(name, field.type, value, self.folder(name))
                object.__setattr__(self, field.name, value)

    def get(self, name: str) -> Any:
        """Returns the value of a field, such as `'decoder.norm'`."""
        return operator.attrgetter(name)(self)

    @classmethod
    def folder(cls, name: str) -> Folder | None:
        """Returns the folder of a component's field, such as `'model.norm'`."""
        return FOLDERS.get(name.rpartition('.')[2])


@dataclasses.dataclass(frozen=True)
class DecoderConfig(Section):
    """Overrides for the decoder of an encoder-decoder; None inherits from `model`."""

    NAME = 'model.decoder'

    num_layers: Annotated[int | None, DEPTH, 'depth'] = None
    d_model: Annotated[int | None, WIDTH, 'width'] = None
    num_heads: Annotated[int | None, HEADS, 'query heads'] = None
    num_kv_heads: Annotated[int | None, HEADS, 'key and value heads'] = None
    d_k: Annotated[int | None, WIDTH, 'width of a query and key'] = None
    d_v: Annotated[int | None, WIDTH, 'width of a value'] = None
    d_ff: Annotated[int | None, WIDTH, 'inner width of the feed-forward network'] = None
    attention: Annotated[Component | None, 'self-attention'] = None
    positions: Annotated[Component | None, 'positions of the target'] = None
    norm: Annotated[Component | None, 'normalization'] = None
    residual: Annotated[Component | None, 'residual connection'] = None
    feed_forward: Annotated[Component | None, 'feed-forward network'] = None
    block: Annotated[Component | None, 'layer'] = None
    share_layers: Annotated[
        int | None, DEPTH, 'number of layers with parameters of their own'
    ] = None


@dataclasses.dataclass(frozen=True)
class CrossConfig(Section):
    """Overrides for cross-attention; None inherits sizes from the decoder."""

    NAME = 'model.cross'

    num_heads: Annotated[int | None, HEADS, 'query heads'] = None
    num_kv_heads: Annotated[int | None, HEADS, 'key and value heads'] = None
    d_k: Annotated[int | None, WIDTH, 'width of a query and key'] = None
    d_v: Annotated[int | None, WIDTH, 'width of a value'] = None
    attention: Annotated[
        Component | None,
        'a file in attention/; empty: model.attention, or softmax if that is local',
    ] = None
    positions: Annotated[
        Component, 'a file in positions/ that acts on queries and keys'
    ] = Component.of('none')


@dataclasses.dataclass(frozen=True)
class ModelConfig(Section):
    """Config of a model; the defaults are the paper's base model."""

    NAME = 'model'

    architecture: Annotated[Component, 'a file in models/'] = Component.of(
        'encoder_decoder'
    )

    d_model: Annotated[int, WIDTH, 'width of embeddings and residual stream'] = 512
    num_layers: Annotated[int, DEPTH, 'depth of the encoder'] = 6
    num_heads: Annotated[int, HEADS, 'query heads'] = 8
    num_kv_heads: Annotated[
        int | None, HEADS, 'key and value heads; empty: num_heads'
    ] = None
    d_k: Annotated[
        int | None, WIDTH, 'width of a query and key; empty: d_model / num_heads'
    ] = None
    d_v: Annotated[
        int | None, WIDTH, 'width of a value; empty: d_model / num_heads'
    ] = None
    d_ff: Annotated[int, WIDTH, 'inner width of the feed-forward network'] = 2048

    attention: Annotated[Component, 'a file in attention/'] = Component.of('softmax')
    projections: Annotated[
        bool,
        'False: self-attention has no projections, each head is a slice of d_model',
    ] = True
    attention_bias: Annotated[
        bool, 'biases of the query, key, value and output projections'
    ] = False
    positions: Annotated[Component, 'a file in positions/'] = Component.of('sinusoidal')
    continuous_positions: Annotated[
        bool, "the decoder's positions continue those of the encoder"
    ] = False
    merged_attention: Annotated[
        bool, 'one softmax over target and source instead of two attention sublayers'
    ] = False
    norm: Annotated[Component, 'a file in norms/'] = Component.of('layer')
    norm_embeddings: Annotated[bool, 'normalize embeddings after adding positions'] = (
        False
    )
    residual: Annotated[Component, 'a file in residual/'] = Component.of('post_norm')
    feed_forward: Annotated[Component, 'a file in feed_forward/'] = Component.of('relu')
    block: Annotated[Component, 'a file in layers/blocks/'] = Component.of('sequential')
    scan_layers: Annotated[
        bool, 'run layers in a loop, so that compile time does not grow with depth'
    ] = False

    share_layers: Annotated[
        int | None,
        DEPTH,
        'number of layers with parameters of their own, which later layers reuse in '
        'turn; empty: all',
    ] = None
    dropout: Annotated[Rate, 'dropout rate of sublayers and embeddings'] = 0.1
    dropout_kind: Annotated[
        str, Choices('elements', 'tokens'), 'drop single elements or whole tokens'
    ] = 'elements'
    head_dropout: Annotated[Rate, 'dropout rate of whole heads'] = 0.0
    layer_drop: Annotated[Rate, 'dropout rate of whole layers'] = 0.0

    init: Annotated[
        Component | None, 'a file in init/; empty: xavier, or as the residual requires'
    ] = None
    dense: Annotated[
        Component | None,
        'adapter of every matrix, a file in layers/dense/, such as lora; empty: none',
    ] = None
    tie: Annotated[
        str,
        Choices('all', 'decoder', 'source_target', 'none'),
        'which embedding matrices are shared',
    ] = 'all'
    scale_embeddings: Annotated[bool, 'multiply embeddings by √d_model'] = True
    output_bias: Annotated[bool, 'bias of the logits'] = False
    scale_logits: Annotated[
        bool, 'divide hidden states by √d_model before the logits'
    ] = False
    logit_cap: Annotated[
        float | None, Range(above=0), 'logits z become m tanh(z / m); empty: no cap'
    ] = None
    dtype: Annotated[
        str,
        DTYPES,
        'dtype of matmul operands; sums are float32',
    ] = 'float32'

    decoder: DecoderConfig = DecoderConfig()
    cross: CrossConfig = CrossConfig()

    @classmethod
    def of(cls, config: 'Mapping[str, Any] | ModelConfig') -> 'ModelConfig':
        """Returns a validated config from a mapping; omitted fields get defaults.

        Raises:
          ValueError: A field is unknown, or a value is invalid; names the field.
        """
        if isinstance(config, ModelConfig):
            return config
        values = {}
        for name, value in config.items():
            if name not in ('decoder', 'cross'):
                values[name] = value
                continue
            section = vars(value) if isinstance(value, Section) else value
            for field, inner in section.items():
                values[f'{name}.{field}'] = inner
        return cls().with_values(values)

    def with_values(self, values: Mapping[str, Any]) -> 'ModelConfig':
        """Returns a config with other values, such as `{'decoder.norm': 'rms'}`."""
        known = leaves(ModelConfig)
        for name in values:
            if name not in known:
                hint = validation.did_you_mean(name, known)
                raise ValueError(f'unknown model field {name!r}{hint}')
        return of_flat(ModelConfig, {x: self.get(x) for x in known} | dict(values))

    def deciding_field(self, name: str, role: str) -> str:
        """Returns the field that applies to a stack: `'decoder.norm'` or `'norm'`."""
        return deciding_field(self, name, role)

    def value(self, name: str, role: str) -> Any:
        return value_of(self, name, role)

    def sizes(self, role: Role) -> Sizes:
        return sizes_of(self, role)

    def cross_sizes(self) -> Sizes:
        return cross_sizes_of(self)


def fields() -> list[str]:
    """Returns the names of all fields: `'norm'`, …, `'decoder.norm'`, …."""
    return list(leaves(ModelConfig))
