"""The fields of a `model` config: type, default, range and help of each.

Validation, error messages, `--help` and the table in the documentation are generated
from these annotations: `Annotated[type, Range or Choices, help]`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from flaxformer_lite import ranges
from flaxformer_lite.config.spec import Spec
from flaxformer_lite.ranges import Choices, Range, Rate
from flaxformer_lite.sizes import Role, Sizes

# Axes of x_BTD along which dropout masks are shared.
DROPOUT_AXES = {'elements': (), 'tokens': (-1,)}

# Larger values are typos. Each layer takes 0.1 seconds to trace.
WIDTH = Range(at_least=1, at_most=2**24)
DEPTH = Range(at_least=1, at_most=1000)
HEADS = Range(at_least=1, at_most=2**16)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Config of a model.

    The defaults are the paper's base model. A field of None falls back to another
    field.
    """

    architecture: Annotated[Spec, 'a file in models/'] = 'encoder_decoder'

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

    decoder_num_layers: Annotated[
        int | None, DEPTH, 'depth of the decoder; empty: num_layers'
    ] = None
    decoder_d_model: Annotated[
        int | None, WIDTH, 'width of the decoder; empty: d_model'
    ] = None
    decoder_num_heads: Annotated[
        int | None, HEADS, "the decoder's; empty: num_heads"
    ] = None
    decoder_num_kv_heads: Annotated[
        int | None, HEADS, "the decoder's; empty: num_kv_heads"
    ] = None
    decoder_d_k: Annotated[int | None, WIDTH, "the decoder's; empty: d_k"] = None
    decoder_d_v: Annotated[int | None, WIDTH, "the decoder's; empty: d_v"] = None
    decoder_d_ff: Annotated[int | None, WIDTH, "the decoder's; empty: d_ff"] = None
    cross_num_heads: Annotated[
        int | None, HEADS, "cross-attention; empty: the decoder's"
    ] = None
    cross_num_kv_heads: Annotated[
        int | None, HEADS, "cross-attention; empty: the decoder's"
    ] = None
    cross_d_k: Annotated[int | None, WIDTH, "cross-attention; empty: the decoder's"] = (
        None
    )
    cross_d_v: Annotated[int | None, WIDTH, "cross-attention; empty: the decoder's"] = (
        None
    )

    attention: Annotated[Spec, 'a file in attention/'] = 'softmax'
    decoder_attention: Annotated[
        Spec | None, "the decoder's self-attention; empty: attention"
    ] = None
    cross_attention: Annotated[
        Spec | None,
        'cross-attention; empty: attention, or softmax if that is local',
    ] = None
    projections: Annotated[
        bool,
        'False: self-attention has no projections, each head is a slice of d_model',
    ] = True
    attention_bias: Annotated[
        bool, 'biases of the query, key, value and output projections'
    ] = False
    positions: Annotated[Spec, 'a file in positions/'] = 'sinusoidal'
    decoder_positions: Annotated[Spec | None, "the decoder's; empty: positions"] = None
    cross_positions: Annotated[Spec, 'positions in cross-attention'] = 'none'
    continuous_positions: Annotated[
        bool, "the decoder's positions continue those of the encoder"
    ] = False
    merged_attention: Annotated[
        bool, 'one softmax over target and source instead of two attention sublayers'
    ] = False
    norm: Annotated[Spec, 'a file in norms/'] = 'layer'
    decoder_norm: Annotated[Spec | None, "the decoder's; empty: norm"] = None
    norm_embeddings: Annotated[bool, 'normalize embeddings after adding positions'] = (
        False
    )
    residual: Annotated[Spec, 'a file in residual/'] = 'post_norm'
    decoder_residual: Annotated[Spec | None, "the decoder's; empty: residual"] = None
    feed_forward: Annotated[Spec, 'a file in feed_forward/'] = 'relu'
    decoder_feed_forward: Annotated[
        Spec | None, "the decoder's; empty: feed_forward"
    ] = None
    block: Annotated[Spec, 'a file in layers/blocks/'] = 'sequential'
    decoder_block: Annotated[Spec | None, "the decoder's; empty: block"] = None

    scan_layers: Annotated[
        bool, 'run layers in a loop, so that compile time does not grow with depth'
    ] = False

    share_layers: Annotated[
        int | None,
        DEPTH,
        'number of layers with parameters of their own, which later layers reuse in '
        'turn; empty: all',
    ] = None
    decoder_share_layers: Annotated[
        int | None, DEPTH, "the decoder's; empty: share_layers"
    ] = None

    dropout: Annotated[Rate, 'dropout rate of sublayers and embeddings'] = 0.1
    dropout_kind: Annotated[
        str, Choices(*DROPOUT_AXES), 'drop single elements or whole tokens'
    ] = 'elements'
    head_dropout: Annotated[Rate, 'dropout rate of whole heads'] = 0.0
    layer_drop: Annotated[Rate, 'dropout rate of whole layers'] = 0.0

    init: Annotated[
        Spec | None, 'a file in init/; empty: xavier, or as the residual requires'
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
        Choices('float32', 'bfloat16', 'float16'),
        'dtype of matmul operands; sums are float32',
    ] = 'float32'

    @classmethod
    def of(cls, config: 'Mapping[str, Any] | ModelConfig') -> 'ModelConfig':
        """Returns a validated config from a mapping; omitted fields get defaults.

        Raises:
          ValueError: a field is unknown, or a value is invalid; names the field.
        """
        if isinstance(config, ModelConfig):
            return config
        known = [field.name for field in dataclasses.fields(cls)]
        for name in config:
            if name not in known:
                raise ValueError(
                    f'model has no field {name!r}{ranges.nearest(name, known)}'
                )
        return cls(**config)

    def __post_init__(self):
        for field in dataclasses.fields(self):
            ranges.check(f'model.{field.name}', field.type, getattr(self, field.name))

    def deciding_field(self, name: str, role: str) -> str:
        """Returns the field that applies to a stack, such as 'decoder_norm' or 'norm'.

        All fallbacks are defined here. The decoder of an encoder-decoder uses its own
        field, `decoder_…`, or else the plain one. Cross-attention uses `cross_…`.
        Otherwise its sizes are the decoder's, and its kind of attention is the plain
        field's. `build.Parts` makes an exception for an attention that is
        `by_distance`.

        Args:
          name: a plain field.
          role: 'encoder', 'decoder', 'cross', or the role of a single stack.
        """
        prefixes = _FALLBACKS.get(role, [])
        if role == 'cross' and name in ('attention', 'positions'):
            prefixes = ['cross_']
        for prefix in prefixes:
            field = prefix + name
            if getattr(self, field, None) is not None:
                return field
        return name

    def value(self, name: str, role: str) -> Any:
        """Returns the value of the deciding field."""
        return getattr(self, self.deciding_field(name, role))

    def sizes(self, role: Role) -> Sizes:
        """Returns the sizes of a stack."""
        encoder_layers = self.num_layers
        decoder_layers = self.num_layers
        if role == 'encoder_only':
            decoder_layers = 0
        elif role in ('decoder_only', 'prefix_only'):
            encoder_layers = 0
        else:
            decoder_layers = self.value('num_layers', 'decoder')
        return Sizes(
            d_model=self.value('d_model', role),
            d_ff=self.value('d_ff', role),
            role=role,
            encoder_layers=encoder_layers,
            decoder_layers=decoder_layers,
            **self._attention_sizes(role),
        )

    def cross_sizes(self) -> Sizes:
        """Returns the decoder's sizes, with those of cross-attention."""
        return dataclasses.replace(
            self.sizes('decoder'), **self._attention_sizes('cross')
        )

    def _attention_sizes(self, role: str) -> dict[str, Any]:
        num_heads = self.value('num_heads', role)
        num_kv_heads = self.value('num_kv_heads', role)
        d_k = self.value('d_k', role)
        d_v = self.value('d_v', role)
        derived = self.value('d_model', role) // num_heads
        return dict(
            num_heads=num_heads,
            num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads,
            d_k=derived if d_k is None else d_k,
            d_v=derived if d_v is None else d_v,
            d_k_derived=d_k is None,
        )


# Prefixes of a field's name, in order of precedence, for the decoder of an
# encoder-decoder and for cross-attention.
_FALLBACKS = {'decoder': ['decoder_'], 'cross': ['cross_', 'decoder_']}
