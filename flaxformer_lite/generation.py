"""Sources to targets with a model, in one call."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flaxformer_lite import decode, learning
from flaxformer_lite.architectures.base import Model, grow

# How much longer than its source a target may become (paper §6.1).
EXTRA = 50


class _Search(NamedTuple):
    """All of `generate`'s settings that are not arrays."""

    name: str
    length: int
    bos: int
    eos: int
    beams: int
    alpha: float
    best: int
    temperature: float
    top_k: int
    top_p: float


def generate(
    model: Model,
    variables: Any,
    source: learning.Sentences,
    search: str = 'beam',
    *,
    max_length: int | None = None,
    bos: int = 2,
    eos: int = 1,
    beams: int = 4,
    alpha: float = 0.6,
    best: int = 1,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    key: jax.Array | None = None,
) -> decode.Decoded:
    """Targets of sources, best first: tokens, scores, and which of them exist.

    It is compiled for each shape of the source: give sources of like length, in batches of a size.

    Args:
      variables: as `model.apply` takes them: {'params': …}.
      source: lists of tokens, or an array (rows, length) that is filled up with 0; end tokens
        included, if the model was trained with them. A row of nothing has no target.
      search: 'greedy', 'beam' or 'sample'.
      max_length: the most tokens of a target, its end token counted; None for 50 more than its
        source has. Where positions are learned, no more than there are.
      bos, eos: the start and the end token.
      beams, alpha, best: of 'beam', as `decode.beam` has them.
      temperature, top_k, top_p: of 'sample', as `decode.sample` has them.
      key: of 'sample'; what a row draws depends on it and on the row's number alone.

    Raises:
      ValueError: an argument that cannot be worked with, or sources that are too long.
    """
    learning.check_variables(variables)
    source_BS = learning.rows(source, 'source')
    _check(model, source_BS, search, key, bos, eos)
    longest = source_BS.shape[1] + EXTRA if max_length is None else max_length
    if longest < 1:
        raise ValueError(f'max_length must be at least 1, not {max_length}')
    settings = _Search(
        search,
        min(longest, model.max_length or longest),
        bos,
        eos,
        beams,
        alpha,
        best,
        temperature,
        top_k,
        top_p,
    )
    words_B = (source_BS != 0).sum(-1)
    most_B = words_B + EXTRA if max_length is None else max_length
    limits_B = jnp.where(words_B > 0, most_B, 0).astype(jnp.int32)
    key = jax.random.key(0) if key is None else key
    return _generated(model, settings, variables, source_BS, limits_B, key)


def _check(model, source_BS, search, key, bos, eos):
    names = ('greedy', 'beam', 'sample')
    if search not in names:
        raise ValueError(f'search must be one of {", ".join(names)}, not {search!r}')
    if search == 'sample' and key is None:
        raise ValueError('sampling needs a key, such as key=jax.random.key(0)')
    if not (0 <= bos < model.vocab_size and 0 < eos < model.vocab_size and bos != eos):
        raise ValueError(
            f'bos and eos must be two tokens of the {model.vocab_size}, and eos not 0, which is '
            f'padding: not {bos} and {eos}'
        )
    # Traced values are not known.
    if model.max_length is None or isinstance(source_BS, jax.core.Tracer):
        return
    words = int((source_BS != 0).sum(-1).max(initial=0))
    if words > model.max_length:
        raise ValueError(
            f'a source has {words} tokens, and the model positions for {model.max_length}'
        )


@functools.partial(jax.jit, static_argnums=(0, 1))
def _generated(model, settings, variables, source_BS, limits_B, key):
    def step(token_BN, memory, path):
        return model.apply(variables, token_BN, memory, path, method='step')

    task = decode.Task(
        step,
        grow,
        model.apply(variables, source_BS, method='start'),
        limits_B,
        settings.bos,
        settings.eos,
        settings.length,
    )
    if settings.name == 'greedy':
        return decode.greedy(task)
    if settings.name == 'beam':
        return decode.beam(task, settings.beams, settings.alpha, settings.best)
    rows_B = jnp.arange(len(source_BS))
    keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, rows_B)
    filters = settings.temperature, settings.top_k, settings.top_p
    return decode.sample(task, keys_B, *filters)
