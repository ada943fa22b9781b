"""Decodes targets from sources in one call."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

import flaxformer_lite.decoding as decoding
from flaxformer_lite.config.deprecated_text import warn_of_text
from flaxformer_lite.config.spec import Component, Spec
from flaxformer_lite.config.variants import PROCESSORS, STRATEGIES
from flaxformer_lite.decoding.processors.base import Processor
from flaxformer_lite.decoding.strategies.base import Strategy
from flaxformer_lite.decoding.strategies.beam import BeamSearch
from flaxformer_lite.ensembling import EnsembleModel
from flaxformer_lite.interventions.actions import check_heads
from flaxformer_lite.interventions.context import as_pytree, with_separate_layers
from flaxformer_lite.interventions.decoding import decode_functions, number_of_heads
from flaxformer_lite.interventions.names import Interventions
from flaxformer_lite.kv_cache import with_float32_slots
from flaxformer_lite.masks import TokenBatch
from flaxformer_lite.models.base import Model
from flaxformer_lite.sharding import map_rows
from flaxformer_lite.special_tokens import SpecialTokens
from flaxformer_lite.taps import trace_keys
from flaxformer_lite.training.batch import Sources, check_variables, pad_source
from flaxformer_lite.validation import naming

# The paper's, §6.1.
DEFAULT_STRATEGY = BeamSearch(beams=4, alpha=0.6)
# A processor, its class, or several, in order. Strings are deprecated.
Processors = Processor | type[Processor] | Sequence[Processor | type[Processor]] | str
# Default maximum target length, in tokens beyond the source length (paper §6.1).
EXTRA_LENGTH = 50


class DecodingOptions(NamedTuple):
    """Static arguments of decoding.

    Attributes:
      extra_length: Maximum target length, in tokens beyond the source length.
      n_best: The beam search stops when this many results per row are final.
      length: Maximum length of all targets, independent of their sources. None uses
        `extra_length`.
      special_tokens: IDs of padding, start and end. Defaults to the model's.
      float32_cache: Whether caches hold bfloat16 values as float32, which is faster on
        CPU.
    """

    strategy: Strategy
    processors: tuple[Processor, ...] = ()
    extra_length: int = EXTRA_LENGTH
    n_best: int = 1
    length: int | None = None
    special_tokens: SpecialTokens | None = None
    float32_cache: bool = False


def as_strategy(strategy: Spec) -> Strategy:
    """Returns the strategy of an object, a class or a spec such as `'beam(beams=8)'`.

    Raises:
      ValueError: The strategy is unknown, or an argument is unknown or invalid.
    """
    if isinstance(strategy, Strategy):
        return strategy
    return STRATEGIES.make(strategy)


def as_processors(processors: Processors | Spec | None) -> tuple[Processor, ...]:
    """Returns the processors of one or a list, in order; `()` for None.

    Raises:
      ValueError: As `as_strategy`.
    """
    if isinstance(processors, Processor):
        return (processors,)
    if isinstance(processors, Sequence) and not isinstance(processors, str):
        return tuple(x for entry in processors for x in as_processors(entry))
    found = Component.of(processors, PROCESSORS).entries if processors else ()
    return tuple(entry.make() for entry in found)


def generate(
    model: Model | EnsembleModel,
    variables: Any,
    source: Sources,
    strategy: Strategy | type[Strategy] | str = DEFAULT_STRATEGY,
    *,
    max_length: int | None = None,
    bos: int | None = None,
    eos: int | None = None,
    forced_first: int | None = None,
    processors: Processors | None = None,
    n_best: int = 1,
    key: jax.Array | None = None,
    interventions: Interventions | None = None,
) -> decoding.DecodeResult:
    """Decodes the targets of sources.

        result = fl.generate(model, variables, sources, fl.decoding.BeamSearch(beams=8))

    It compiles once per source shape, so batch sources of similar length, with a fixed
    number of rows. On a mesh, each device decodes its own rows (see `sharding`).

    Args:
      variables: {'params': …}.
      source: Lists of tokens, or a padded array (rows, length), with end tokens if the
        model was trained with them. Vectors: lists of arrays (length, features), or one
        array (rows, length, features); an all-zero vector is padding. An empty row has
        no target.
      strategy: A strategy of `fl.decoding`, such as `Sample(top_p=0.9)`, or its class.
        Defaults to `BeamSearch(beams=4, alpha=0.6)`.
      max_length: Maximum target length, including the end token. Defaults to the source
        length + 50. Learned positions limit it.
      bos, eos: Default to the model's.
      forced_first: First token of every target, such as the target language of M2M100.
        It has probability 1 in the scores.
      processors: Processors of `fl.decoding`, in order, such as
        `[NoRepeatNgram(size=3), MinLength(length=5)]`.
      n_best: The beam search stops when this many results per row are final.
      key: PRNG key for sampling. A row's samples depend only on the key and the row
        index.
      interventions: As in `intervene`.

    Returns:
      The hypotheses of each source: `tokens` (B, N, L) and `scores` (B, N), best first.

    Raises:
      ValueError: An argument is invalid, or a source is too long.
    """
    check_variables(variables)
    special_tokens = _special_tokens(model, bos, eos)
    padding = special_tokens.padding
    size = model.source_vocab_size or model.vocab_size
    source_BS = pad_source(source, padding, size)
    source_length_B = TokenBatch.from_tokens(source_BS, padding).valid_BT.sum(-1)
    with naming('strategy'):
        search = as_strategy(strategy)
    warn_of_text('strategy', strategy, STRATEGIES)
    _check(model, source_length_B, search, key)
    longest = source_BS.shape[1] + EXTRA_LENGTH if max_length is None else max_length
    if longest < 1:
        raise ValueError(f'max_length must be at least 1, not {max_length}')
    with naming('processors'):
        all_processors = *forced_prefix(forced_first), *as_processors(processors)
    if processors:
        warn_of_text('processors', processors, PROCESSORS)
    limit = _shortest_limit(model, source_length_B, max_length)
    for processor in all_processors:
        processor.check(model.vocab_size, special_tokens, limit)
    options = DecodingOptions(
        search,
        all_processors,
        n_best=n_best,
        length=longest,
        special_tokens=special_tokens,
    )
    max_len_B = source_length_B + EXTRA_LENGTH if max_length is None else max_length
    max_len_B = jnp.where(source_length_B > 0, max_len_B, 0).astype(jnp.int32)
    if key is None:
        key = jax.random.key(0)
    arrays = variables, key, source_BS, max_len_B
    if interventions:
        if isinstance(model, EnsembleModel):
            raise ValueError(
                'interventions: an ensemble has no activations. Pass one of its models.'
            )
        interventions = as_pytree(interventions)
        check_heads(interventions, functools.partial(number_of_heads, model))
    return _generate(model, options, trace_keys(), *arrays, interventions or None)


def _special_tokens(model, bos, eos):
    given = {'bos': bos, 'eos': eos}
    given = {name: token for name, token in given.items() if token is not None}
    special_tokens = dataclasses.replace(model.special_tokens, **given)
    special_tokens.check_within(model.vocab_size)
    return special_tokens


def forced_prefix(first: int | jax.Array | None) -> tuple[Processor, ...]:
    """Returns a processor that forces the first token; empty for None."""
    if first is None:
        return ()
    return (PROCESSORS.make('forced_prefix', tokens=(first,)),)


def _shortest_limit(model, source_length_B, max_length):
    """Returns the maximum length of the shortest target; traced lengths count as 1."""
    if max_length is None:
        shortest = 1
        if not isinstance(source_length_B, Tracer):
            lengths = source_length_B[source_length_B > 0]
            shortest = int(lengths.min(initial=2**30))
        max_length = shortest + EXTRA_LENGTH
    return min(max_length, model.max_length or max_length)


def _check(model, source_length_B, strategy, key):
    if strategy.draws and key is None:
        raise ValueError('sampling needs a key, such as key=jax.random.key(0)')
    # Traced lengths are unknown.
    if model.max_length is None or isinstance(source_length_B, Tracer):
        return
    longest = int(source_length_B.max(initial=0))
    if longest > model.max_length:
        raise ValueError(
            f'a source has {longest} tokens, but the model has positions for only '
            f'{model.max_length}'
        )


# Observers and interceptors change the program, so they are part of the cache key.
@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _generate(
    model, options, trace_keys, variables, key, source_BS, max_len_B, interventions
):
    # The row index in the whole batch.
    rows_B = jnp.arange(len(source_BS))
    return decode_rows(
        model, options, variables, key, source_BS, max_len_B, rows_B, interventions
    )


def decode_rows(
    model: Any,
    options: DecodingOptions,
    variables: Any,
    key: jax.Array,
    source_BS: jax.Array,
    max_len_B: jax.Array,
    numbers_B: jax.Array,
    interventions: Any = None,
) -> decoding.DecodeResult:
    """Computes the result of `generate`; for callers that compile it themselves.

    Args:
      source_BS: int32, with end tokens and padding; or vectors, float32 BSF.
      max_len_B: int32, maximum length of each target; 0 for an empty row.
      numbers_B: int32 row index, which determines a row's samples.
      interventions: None, or a pytree of functions, as in `intervene`.
    """
    keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, numbers_B)
    if interventions is not None:
        model, variables = with_separate_layers(model, variables)
    decode = functools.partial(_decode, model, options)
    divided = source_BS, max_len_B, keys_B, numbers_B
    return map_rows(decode, (variables, interventions), divided)


def _decode(
    model, options, variables, interventions, source_BS, max_len_B, keys_B, row_B
):
    inputs = decode_inputs(
        model, options, variables, source_BS, max_len_B, keys_B, interventions, row_B
    )
    return options.strategy(inputs, options.n_best)


def decode_inputs(
    model: Any,
    options: DecodingOptions,
    variables: Any,
    source_BS: jax.Array,
    max_len_B: jax.Array,
    keys_B: jax.Array | None = None,
    interventions: Any = None,
    row_B: jax.Array | None = None,
) -> decoding.DecodeInputs:
    """Returns the search inputs of `decode_rows`, for callers that run the search.

    Args:
      keys_B: PRNG key per row, for sampling strategies.
      interventions: As in `decode_rows`. The model must have separate layers.
      row_B: int32, index of each row. Defaults to those of `source_BS`.
    """
    if interventions is not None:
        row_B = jnp.arange(len(source_BS)) if row_B is None else row_B
        decode_step, state = decode_functions(
            model, variables, interventions, source_BS, row_B
        )
    else:
        decode_step = functools.partial(model.apply, variables, method='decode_step')
        state = model.apply(variables, source_BS, method='prefill')
    if options.float32_cache:
        state = with_float32_slots(state)
    length = options.length
    if length is None:
        length = source_BS.shape[1] - 1 + options.extra_length
    special_tokens = options.special_tokens or model.special_tokens
    if model.max_length is not None:
        length = min(length, model.max_length)
    return decoding.DecodeInputs(
        decode_step,
        state,
        max_len_B,
        special_tokens.bos,
        special_tokens.eos,
        length,
        special_tokens.padding,
        options.processors,
        keys_B if options.strategy.draws else None,
    )
