"""Sources to targets with a model, in one call."""

import dataclasses
import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

import flaxformer_lite.decoding as decoding
from flaxformer_lite.interception import interceptors
from flaxformer_lite.models.base import Model
from flaxformer_lite.sharding import map_rows
from flaxformer_lite.special_tokens import SpecialTokens
from flaxformer_lite.training.batch import Sentences, check_variables, pad_rows

# How much longer than its source a target may become (paper §6.1).
EXTRA_LENGTH = 50

Strategy = Literal['greedy', 'beam', 'sample']
STRATEGIES = ('greedy', 'beam', 'sample')


class Settings(NamedTuple):
    """What `decode_rows` is told beside arrays: `generate` has the same.

    `length` is the most tokens of any target; learned positions limit it.
    """

    strategy: str
    length: int
    special_tokens: SpecialTokens
    forced_first: int | None
    beams: int
    alpha: float
    n_best: int
    temperature: float
    top_k: int
    top_p: float


def generate(
    model: Model,
    variables: Any,
    source: Sentences,
    strategy: Strategy = 'beam',
    *,
    max_length: int | None = None,
    bos: int | None = None,
    eos: int | None = None,
    forced_first: int | None = None,
    beams: int = 4,
    alpha: float = 0.6,
    n_best: int = 1,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    key: jax.Array | None = None,
) -> decoding.DecodeResult:
    """Decodes the targets of sources: tokens, scores, and which of them exist.

    It compiles for each shape of the source: give sources of like length, in batches of
    one size. Devices that share the rows, as `sharding` says, decode each its own.

    Args:
      model: the model.
      variables: what `model.apply` takes: {'params': …}.
      source: lists of tokens, or an array (rows, length) with padding; with end tokens,
        if the model was trained with them. A row of nothing has no target.
      strategy: how the next token is chosen.
      max_length: the most tokens of a target, its end token counted; None for 50 more
        than its source has. Learned positions limit it to their number.
      bos, eos: the start and the end token; None for the model's.
      forced_first: the token that every target begins with, such as the language that
        M2M100 is to write; None for any. It is given, and adds nothing to the score.
      beams, alpha, n_best: of 'beam', as `decoding.beam` has them.
      temperature, top_k, top_p: of 'sample', as `decoding.sample` has them.
      key: of 'sample'; what a row draws depends on it and the row's number alone.

    Returns:
      The hypotheses of each source, best first.

    Raises:
      ValueError: an argument that cannot work, or sources that are too long.
    """
    check_variables(variables)
    special_tokens = _special_tokens(model, bos, eos)
    padding = special_tokens.padding
    size = model.source_vocab_size or model.vocab_size
    source_BS = pad_rows(source, 'source', padding, size)
    source_length_B = (source_BS != padding).sum(-1)
    _check(model, source_length_B, strategy, key)
    _check_first(model, special_tokens, forced_first, max_length)
    longest = source_BS.shape[1] + EXTRA_LENGTH if max_length is None else max_length
    if longest < 1:
        raise ValueError(f'max_length must be at least 1, not {max_length}')
    settings = Settings(
        strategy,
        longest,
        special_tokens,
        forced_first,
        beams,
        alpha,
        n_best,
        temperature,
        top_k,
        top_p,
    )
    max_len_B = source_length_B + EXTRA_LENGTH if max_length is None else max_length
    max_len_B = jnp.where(source_length_B > 0, max_len_B, 0).astype(jnp.int32)
    if key is None:
        key = jax.random.key(0)
    arrays = variables, key, source_BS, max_len_B
    return _generate(model, settings, interceptors(), *arrays)


def _special_tokens(model, bos, eos):
    """The model's, but for what is given."""
    given = {'start': bos, 'end': eos}
    given = {name: token for name, token in given.items() if token is not None}
    special_tokens = dataclasses.replace(model.special_tokens, **given)
    special_tokens.check_within(model.vocab_size)
    return special_tokens


def _check_first(model, special_tokens, forced_first, max_length):
    if forced_first is None:
        return
    special = dataclasses.astuple(special_tokens)
    if not 0 <= forced_first < model.vocab_size or forced_first in special:
        raise ValueError(
            f'forced_first must be a token of the {model.vocab_size} that is neither '
            f'padding nor start nor end token, not {forced_first}'
        )
    if max_length == 1:
        raise ValueError(
            f'forced_first={forced_first} leaves no room for the end token: give a '
            'max_length of at least 2'
        )


def _check(model, source_length_B, strategy, key):
    if strategy not in STRATEGIES:
        names = ', '.join(STRATEGIES)
        raise ValueError(f'strategy must be one of {names}, not {strategy!r}')
    if strategy == 'sample' and key is None:
        raise ValueError('sampling needs a key, such as key=jax.random.key(0)')
    # The lengths of traced arrays are not known.
    if model.max_length is None or isinstance(source_length_B, Tracer):
        return
    longest = int(source_length_B.max(initial=0))
    if longest > model.max_length:
        raise ValueError(
            f'a source has {longest} tokens, and the model has positions for '
            f'{model.max_length}'
        )


# What listens to the model's calls is part of its program.
@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _generate(model, settings, listeners, variables, key, source_BS, max_len_B):
    # By a row's number in the whole batch.
    rows_B = jnp.arange(len(source_BS))
    return decode_rows(model, settings, variables, key, source_BS, max_len_B, rows_B)


def decode_rows(
    model: Any,
    settings: Settings,
    variables: Any,
    key: jax.Array,
    source_BS: jax.Array,
    max_len_B: jax.Array,
    numbers_B: jax.Array,
) -> decoding.DecodeResult:
    """What `generate` computes, to be traced by one who compiles it.

    Args:
      model: the model, or an `Ensemble`.
      settings: what is no array.
      variables: what `model.apply` takes.
      key: of 'sample'.
      source_BS: int32, with end tokens and padding.
      max_len_B: int32, the most tokens of each target, its end token counted; 0 for a
        row of nothing.
      numbers_B: int32; what a row draws depends on the key and its number alone.
    """
    keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, numbers_B)
    decode = functools.partial(_decode, model, settings)
    return map_rows(decode, (variables,), (source_BS, max_len_B, keys_B))


def _decode(model, settings, variables, source_BS, max_len_B, keys_B):
    length = settings.length
    if model.max_length is not None:
        length = min(length, model.max_length)
    inputs = decoding.DecodeInputs(
        functools.partial(model.apply, variables, method='decode_step'),
        model.apply(variables, source_BS, method='prefill'),
        max_len_B,
        settings.special_tokens.start,
        settings.special_tokens.end,
        length,
        settings.special_tokens.padding,
        settings.forced_first,
    )
    if settings.strategy == 'greedy':
        return decoding.greedy(inputs)
    if settings.strategy == 'beam':
        return decoding.beam(inputs, settings.beams, settings.alpha, settings.n_best)
    return decoding.sample(
        inputs, keys_B, settings.temperature, settings.top_k, settings.top_p
    )
