"""Builds models from a config."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from flaxformer_lite.config import variants
from flaxformer_lite.config.schema import DROPOUT_AXES, ModelConfig
from flaxformer_lite.layers.blocks.base import Block
from flaxformer_lite.layers.dense.base import Dense
from flaxformer_lite.layers.dropout import Dropout
from flaxformer_lite.layers.multi_head_attention import MultiHeadAttention
from flaxformer_lite.layers.scanned_stack import ScannedStack
from flaxformer_lite.layers.stack import EntityEncoder, Stack
from flaxformer_lite.models.base import Model
from flaxformer_lite.sizes import Role, Sizes
from flaxformer_lite.special_tokens import DEFAULT_TOKENS, SpecialTokens


def model(
    config: Mapping[str, Any] | ModelConfig,
    vocab_size: int,
    special_tokens: SpecialTokens = DEFAULT_TOKENS,
    source_vocab_size: int | None = None,
) -> Model:
    """Builds the model of a `model` config.

    Args:
      vocab_size, special_tokens: The tokenizer's.
      source_vocab_size: Size of a separate source vocabulary. Defaults to a vocabulary
        shared with the target.

    Raises:
      ValueError: A value is invalid; names the field.

    Examples:
      >>> model({'num_layers': 2, 'positions': 'learned'}, vocab_size=8000).max_length
      1024
    """
    config = ModelConfig.of(config)
    layers = variants.of_layers(config)
    variants.check(layers[0])
    with variants.naming('architecture'):
        found = config.architecture
        architecture = found.cls
        found.check(found.parameters.keys() - set(architecture.own_arguments))
    special_tokens.check_within(vocab_size)
    parts = Parts(layers, special_tokens, source_vocab_size)
    return architecture.from_parts(parts, vocab_size, **found.arguments)


def entity_encoder(config: Mapping[str, Any] | ModelConfig) -> EntityEncoder:
    """Builds the set encoder of a `model` config, without positions.

    Raises:
      ValueError: As `model`.
    """
    config = ModelConfig.of(config).with_values({'positions': 'none'})
    layers = variants.of_layers(config)
    variants.check(layers[0])
    parts = Parts(layers)
    embedding = parts.dense('encoder_only').copy(features=(config.d_model,))
    return EntityEncoder(embedding, parts.stack('encoder_only'))


class Parts:
    """Components of a config, for architectures to assemble.

    Args:
      layers: The config of each layer of a period, from `variants.of_layers`.
    """

    def __init__(
        self,
        layers: Sequence[ModelConfig],
        special_tokens: SpecialTokens = DEFAULT_TOKENS,
        source_vocab_size: int | None = None,
    ):
        self._layers = layers
        self.config = layers[0]
        self.special_tokens = special_tokens
        self._source_vocab_size = source_vocab_size

    def embeddings(self, role: Role, sizes: Sizes | None = None) -> dict[str, Any]:
        """Returns the attributes of all models, except the vocabulary size."""
        return dict(
            d_model=self.config.value('d_model', role),
            tie=self.config.tie,
            scale_embeddings=self.config.scale_embeddings,
            output_bias=self.config.output_bias,
            scale_logits=self.config.scale_logits,
            logit_cap=self.config.logit_cap,
            dense=self.dense(role, sizes),
            special_tokens=self.special_tokens,
            source_vocab_size=self._source_vocab_size,
        )

    def stack(self, role: Role) -> Stack:
        """Returns all layers of an encoder or decoder.

        The role 'decoder' belongs to an encoder-decoder and includes cross-attention.
        The roles 'encoder_only', 'decoder_only' and 'prefix_only' are single stacks.
        """
        config = self.config
        sizes = config.sizes(role)
        blocks = self._blocks(role, sizes)
        distinct = config.value('share_layers', role) or sizes.num_layers
        shared = distinct != sizes.num_layers
        if shared:
            field = config.deciding_field('share_layers', role)
            _check_shared(field, distinct, role, sizes.num_layers, len(blocks))
            # The shared layers form the period.
            blocks *= distinct // len(blocks)
        kind = Stack
        if config.scan_layers:
            kind = ScannedStack
            _check_period(role, sizes.num_layers, len(blocks))
        return kind(
            blocks=blocks,
            num_layers=sizes.num_layers,
            positions=self._stack_positions(role, sizes),
            embedding_norm=self._embedding_norm(role),
            dropout=self.dropout(),
            layer_drop_rate=config.layer_drop,
            shared=shared,
        )

    def _blocks(self, role: Role, sizes: Sizes) -> tuple[Block, ...]:
        layers = self._layers[: sizes.num_layers]
        blocks = tuple(Parts([layer])._block(role, sizes) for layer in layers)
        self._check_streams(role, blocks)
        # The stack repeats its blocks, so find the period of two repetitions.
        return blocks[: variants.shortest_period(blocks * 2)]

    def _check_streams(self, role: Role, blocks: tuple[Block, ...]) -> None:
        numbers = {block.residual.num_streams for block in blocks}
        if len(numbers) > 1:
            field = self.config.deciding_field('residual', role)
            raise ValueError(
                f'model.{field}: layers have {sorted(numbers)} residual streams. Give '
                'all layers of a stack equally many.'
            )

    def _stack_positions(self, role: Role, sizes: Sizes) -> Any:
        field = self.config.deciding_field('positions', role)
        specs = [x.get(field) for x in self._layers[: sizes.num_layers]]
        layers = [variants.make(field, text, sizes=sizes) for text in specs]
        first = layers[0]
        in_all_layers = all(x == first for x in layers)
        if in_all_layers and not first.adds_scores:
            return first
        for text, layer in zip(specs, layers, strict=True):
            if layer.acts_on_stack and not in_all_layers:
                raise ValueError(
                    f'model.{field}: {text} acts once for the whole stack, so it '
                    'cannot vary by layer. Use rotary, shaw, transformer_xl or none '
                    'in a pattern.'
                )
        # These positions act inside each attention, so the stack doesn't add any.
        return variants.make('positions', 'none', sizes=sizes)

    def _embedding_norm(self, role: Role) -> Any:
        if self.config.norm_embeddings:
            return self._make('norm', role)
        return variants.make('norm', 'identity')

    def dropout(self) -> Dropout:
        return Dropout(self.config.dropout, DROPOUT_AXES[self.config.dropout_kind])

    def dense(self, role: Role, sizes: Sizes | None = None) -> Dense:
        """Returns the template of a stack's matrices, with their initializer."""
        init = self.config.init
        if init is None:
            init = self._default_init(role)
        if sizes is None:
            sizes = self.config.sizes(role)
        kernel_init = variants.make('init', init, sizes=sizes)
        dtype = getattr(jnp, self.config.dtype)
        if self.config.dense is None:
            return Dense(dtype=dtype, kernel_init=kernel_init)
        return variants.make(
            'dense',
            self.config.dense,
            features=(),
            input_axes=1,
            bias=True,
            dtype=dtype,
            kernel_init=kernel_init,
        )

    def additive_attention(self) -> Any:
        """Returns the attention of a recurrent decoder (Bahdanau et al. 2015)."""
        return variants.make('attention', 'additive')

    def _default_init(self, role: Role) -> str:
        architecture = variants.find(self.config, 'architecture')
        is_single_stack = role.endswith('_only')
        if 'residual' in architecture.unused_fields and not is_single_stack:
            return 'xavier'
        field = self.config.deciding_field('residual', role)
        return variants.find(self.config, field).default_init

    def _block(self, role: Role, sizes: Sizes) -> Block:
        merged = role == 'decoder' and self.config.merged_attention
        if merged:
            self._check_merged(sizes)
        has_cross = role == 'decoder' and not merged
        block: Block = self._make(
            'block',
            role,
            self_attention=self._self_attention(role, sizes),
            feed_forward=self._make(
                'feed_forward', role, sizes=sizes, dense=self.dense(role)
            ),
            residual=self._make(
                'residual',
                role,
                norm=self._make('norm', role),
                dropout=self.dropout(),
                sizes=sizes,
            ),
            cross_attention=self._cross_attention() if has_cross else None,
            merged=merged,
        )
        if merged and type(block).attend_to_self is not Block.attend_to_self:
            field = self.config.deciding_field('block', role)
            raise ValueError(
                f"model.{field}='{self.config.get(field)}' has no self-attention "
                'to merge with cross-attention. Leave model.merged_attention=True out.'
            )
        return block

    def _self_attention(self, role: Role, sizes: Sizes) -> MultiHeadAttention:
        core_attention = self._make('attention', role)
        if core_attention.causal_only:
            self._check_causal(role)
        return MultiHeadAttention(
            sizes=sizes,
            core_attention=core_attention,
            # A separate module, because sharing the stack's would share its weights.
            positions=self._make('positions', role, sizes=sizes),
            dense=self.dense(role),
            head_dropout=self._head_dropout(),
            projections=self.config.projections,
            bias=self.config.attention_bias,
        )

    def _cross_attention(self) -> MultiHeadAttention:
        sizes = self.config.cross_sizes()
        positions = self._make('positions', 'cross', sizes=sizes)
        named = self.config.cross.positions
        if not positions.in_attention and named.name != 'none':
            raise ValueError(
                f"model.cross.positions='{named}' has no effect in cross-attention. "
                'Choose positions that act on queries and keys, such as rotary or '
                'shaw, or none.'
            )
        return MultiHeadAttention(
            sizes=sizes,
            core_attention=self._cross_core(),
            positions=positions,
            dense=self.dense('decoder', sizes),
            head_dropout=self._head_dropout(),
            bias=self.config.attention_bias,
        )

    def _cross_core(self) -> Any:
        """Returns the attention of cross-attention.

        Defaults to the encoder's, or to softmax if that is `by_distance`.
        """
        core = self._make('attention', 'cross')
        if core.causal_only:
            self._check_causal('cross')
        if self.config.cross.attention is None and core.by_distance:
            return variants.make('cross.attention', 'softmax')
        return core

    def _check_causal(self, role: str) -> None:
        """Raises ValueError unless a role's attention is to earlier tokens only."""
        merged = role == 'decoder' and self.config.merged_attention
        if role in ('decoder', 'decoder_only') and not merged:
            return
        field = self.config.deciding_field('attention', role)
        fix = 'Set it as model.decoder.attention, or choose architecture=decoder_only.'
        if merged:
            fix = 'Leave model.merged_attention=True out.'
        raise ValueError(
            f"model.{field}='{self.config.get(field)}' supports only attention to "
            f'earlier tokens of the same text. {fix}'
        )

    def _check_merged(self, sizes: Sizes) -> None:
        config = self.config
        if sizes.d_model != config.d_model:
            raise ValueError(
                'model.merged_attention=True shares matrices between source and '
                f'target, but model.d_model={config.d_model} differs from '
                f'model.decoder.d_model={sizes.d_model}. Make them equal.'
            )
        if self._make('positions', 'decoder', sizes=sizes).adds_scores:
            field = config.deciding_field('positions', 'decoder')
            raise ValueError(
                f'model.{field}={config.get(field)} adds scores by distance, which '
                'source keys do not have with model.merged_attention=True. Choose '
                'rotary, t5, alibi or positions that act on embeddings.'
            )

    def _head_dropout(self) -> Dropout:
        return Dropout(self.config.head_dropout, (1, 3))

    def _make(self, kind: str, role: str, **given: Any) -> Any:
        field = self.config.deciding_field(kind, role)
        return variants.make(field, self.config.get(field), **given)


def _check_shared(
    field: str, distinct: int, role: Role, num_layers: int, period: int
) -> None:
    stack, _, _ = role.partition('_')
    if distinct > num_layers:
        raise ValueError(
            f'model.{field}={distinct} exceeds the number of layers of the {stack}, '
            f'{num_layers}. Lower it.'
        )
    if distinct % period:
        raise ValueError(
            f'model.{field}={distinct} must be a multiple of the period of the '
            f"{stack}'s layer pattern, {period}, because only equal layers can share "
            'parameters. Change it, or change the pattern.'
        )


def _check_period(role: Role, num_layers: int, period: int) -> None:
    if num_layers % period:
        stack, _, _ = role.partition('_')
        raise ValueError(
            'model.scan_layers=True needs a number of layers that is a multiple of '
            f"the pattern's length, {period}, but the {stack} has {num_layers} layers. "
            'Change the depth or the pattern, or leave scan_layers out.'
        )
