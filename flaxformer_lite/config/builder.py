"""Builds models from a config: each component, then the class of the architecture."""

import contextlib
import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any

import jax.numpy as jnp

from flaxformer_lite.config import schema, variants
from flaxformer_lite.config.schema import ModelConfig, Section
from flaxformer_lite.config.spec import Component
from flaxformer_lite.models.base import Embeddings, Model
from flaxformer_lite.networks import (
    CrossOverrides,
    DecoderOverrides,
    DropoutRates,
    EntityEncoder,
    Projections,
)
from flaxformer_lite.special_tokens import DEFAULT_TOKENS, SpecialTokens


def build(
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
      >>> build({'num_layers': 2, 'positions': 'learned'}, vocab_size=8000).max_length
      1024
    """
    config = ModelConfig.of(config)
    with variants.naming('architecture'):
        found = config.architecture
        architecture = found.cls
        found.check(found.parameters.keys() - set(architecture.own_arguments))
    special_tokens.check_within(vocab_size)
    arguments = _arguments(config, found.parameters)
    with naming_fields(architecture.own_arguments):
        return architecture(
            vocab_size=vocab_size,
            special_tokens=special_tokens,
            source_vocab_size=source_vocab_size,
            **arguments,
            **found.arguments,
        )


def entity_encoder(config: Mapping[str, Any] | ModelConfig) -> EntityEncoder:
    """Builds the set encoder of a `model` config, without positions.

    Raises:
      ValueError: As `build`.
    """
    config = ModelConfig.of(config).with_values({'positions': 'none'})
    arguments = _arguments(config, Component.of(EntityEncoder).parameters)
    with naming_fields():
        return EntityEncoder(**arguments)


def _arguments(config: ModelConfig, parameters: Collection[str]) -> dict[str, Any]:
    """Returns those arguments of a class that a config has."""
    found = _components(config)
    found |= dict(
        initializer=found.pop('init', None),
        dtype=getattr(jnp, config.dtype),
        embeddings=Embeddings(
            tie=config.tie,
            scale=config.scale_embeddings,
            output_bias=config.output_bias,
            scale_logits=config.scale_logits,
            logit_cap=config.logit_cap,
        ),
        projections=Projections(
            bias=config.attention_bias, self_attention=config.projections
        ),
        dropout=DropoutRates(
            sublayers=config.dropout, whole_tokens=config.dropout_kind == 'tokens'
        ),
    )
    if 'num_heads' in parameters:
        found['dropout'] = dataclasses.replace(
            found['dropout'], heads=config.head_dropout, layers=config.layer_drop
        )
    if 'cross' in parameters:
        found['decoder'] = DecoderOverrides(
            **_components(config.decoder, 'decoder.'),
            continuous_positions=config.continuous_positions,
            merged_attention=config.merged_attention,
        )
        found['cross'] = CrossOverrides(**_components(config.cross, 'cross.'))
    else:
        found['decoder'] = DecoderOverrides(num_layers=config.decoder.num_layers)
    return {name: value for name, value in found.items() if name in parameters}


def _components(section: Section, prefix: str = '') -> dict[str, Any]:
    """Returns the fields of a section, with objects for specs. Omits empty fields."""
    found = {}
    for name, value in vars(section).items():
        if isinstance(value, Component) and name != 'architecture':
            each = [variants.make(prefix + name, entry) for entry in value.entries]
            found[name] = each if value.is_list else each[0]
        elif value is not None:
            found[name] = value
    return found


@contextlib.contextmanager
def naming_fields(own_arguments: Collection[str] = ()):
    """Makes messages of a model's class name fields of the config."""
    try:
        yield
    except ValueError as error:
        message = str(error)
        for name, place in schema.NAMES_IN_CLASSES.items():
            message = re.sub(rf'\b{re.escape(place)}\b', name, message)
        field = re.findall(r'^[\w.]*', message)[0]
        if field in own_arguments:
            message = f'model.architecture: {message}'
        elif field in schema.fields():
            message = f'model.{message}'
        raise ValueError(message) from None
