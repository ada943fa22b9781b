"""A Transformer small enough to compile in a second, and sentences for it."""

import functools
from collections.abc import Collection, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import flaxformer_lite
from flaxformer_lite.config import builder, variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.decoding import DecodeInputs
from flaxformer_lite.models.base import Model
from flaxformer_lite.testing import rows
from flaxformer_lite.training.train_step import TrainState, init_variables

VOCAB = rows.VOCAB_SIZE
# d_k, d_v and d_model / num_heads all differ, so that confusing them fails.
SIZES = dict(d_model=12, num_layers=2, num_heads=2, d_k=4, d_v=3, d_ff=16)
# The decoder's sizes, and those of its attention to the source, differ from the
# encoder's and from each other.
UNEQUAL = {
    'num_layers': 1,
    'decoder.num_layers': 2,
    'decoder.num_heads': 4,
    'decoder.num_kv_heads': 2,
    'decoder.d_k': 6,
    'decoder.d_v': 5,
    'decoder.d_ff': 20,
    'cross.num_heads': 6,
    'cross.num_kv_heads': 3,
    'cross.d_k': 8,
    'cross.d_v': 7,
}
PAIRS = rows.PAIRS
SOURCES = [source for source, _ in PAIRS]
TARGETS = [target for _, target in PAIRS]
batch = rows.batch_of


def config(**overrides: Any) -> ModelConfig:
    """Returns the paper's base model, shrunk. `decoder__norm` sets `decoder.norm`."""
    return ModelConfig().with_values(dotted(SIZES | overrides))


def dotted(fields: dict[str, Any]) -> dict[str, Any]:
    return {name.replace('__', '.'): value for name, value in fields.items()}


def model(**overrides: Any) -> Model:
    return builder.build(config(**overrides), VOCAB)


def here(field: str) -> list[str]:
    """Returns the variants of a field that this machine and all stacks can run."""

    def runs(name: str) -> bool:
        config = ModelConfig().with_values({field: name})
        variant = variants.find(config, field)
        is_here = getattr(variant, 'backend', None) in (None, jax.default_backend())
        causal_only = getattr(variant, 'causal_only', False)
        return is_here and not (causal_only and field != 'decoder.attention')

    return [name for name in variants.names(field) if runs(name)]


def random_like(shapes: Any, seed: int = 0) -> Any:
    """Returns random arrays; zeros and ones of an initializer would hide factors."""
    rng = np.random.default_rng(seed)

    def random(path, x):
        values = 0.4 * rng.standard_normal(x.shape)
        is_variance = jax.tree_util.keystr(path[-1:], simple=True) == 'variance'
        return jnp.asarray(np.abs(values) + 0.5 if is_variance else values, x.dtype)

    return jax.tree_util.tree_map_with_path(random, shapes)


def variables(module: nn.Module, *args: Any, seed: int = 0, **kwargs: Any) -> Any:

    def init():
        return module.init(jax.random.key(0), *args, **kwargs)

    return random_like(jax.eval_shape(init), seed)


@functools.partial(jax.jit, static_argnames=('module', 'method'))
def apply(
    module: nn.Module, variables: Any, *args: Any, method: Any = None, **kwargs: Any
) -> Any:
    """Runs `module.apply` as one program; single operations compile more slowly."""
    return module.apply(variables, *args, method=method, **kwargs)


# Compiled functions of a model, its variables and a batch.
record = jax.jit(flaxformer_lite.record, static_argnums=0)
attention_stats = jax.jit(flaxformer_lite.attention_stats, static_argnums=0)
log_probs = jax.jit(flaxformer_lite.log_probs, static_argnums=0)
loss_sums = jax.jit(flaxformer_lite.loss_sums, static_argnums=0)


def float64(tree: Any) -> Any:
    return jax.tree.map(np.float64, tree)


@functools.cache
def all_variables(model: Model, seed: int = 0) -> Any:
    shapes = jax.eval_shape(lambda: init_variables(model, jax.random.key(0)))
    # Concrete numbers, even while a function is traced.
    with jax.ensure_compile_time_eval():
        return random_like(shapes, seed)


def parameters(model: Model, seed: int = 0) -> Any:
    return all_variables(model, seed)['params']


def decode_inputs(
    model: Model,
    variables: Any,
    source_BS: jax.Array,
    max_len_B: jax.Array,
    length: int,
    bos: int = 2,
) -> DecodeInputs:
    """Returns the arguments of `decoding` for these sources; the end token is 1."""
    return DecodeInputs(
        decode_step=functools.partial(model.apply, variables, method='decode_step'),
        state=model.apply(variables, source_BS, method='prefill'),
        max_len_B=max_len_B,
        bos=bos,
        eos=1,
        length=length,
    )


def adam(rate: float) -> optax.GradientTransformation:
    return optax.adam(rate, b1=0.9, b2=0.98, eps=1e-9)


def first_gradient(state: TrainState) -> Any:
    """Returns the gradient of `adam`'s first step from its first moment."""
    return jax.tree.map(lambda x: x / (1 - 0.9), state.opt_state[0].mu)


def padded(sentences: list[list[int]], length: int = 0) -> jax.Array:
    length = max([length, *map(len, sentences)])
    lists = [tokens + [0] * (length - len(tokens)) for tokens in sentences]
    return jnp.asarray(lists, jnp.int32)


def slow(*values: Any, **options: Any) -> Any:
    """Returns a parameter set of a test that only the nightly run has."""
    return pytest.param(*values, marks=pytest.mark.slow, **options)


def cases(values: Iterable[Any], fast: Collection[Any]) -> list[Any]:
    """Returns parameter sets. The default run has only those in `fast`."""
    return [value if value in fast else slow(value) for value in values]


def pairs_batch() -> dict[str, jax.Array]:
    """Returns a batch with one sentence pair per row."""
    return batch([[pair] for pair in PAIRS])


def packed_batch() -> dict[str, jax.Array]:
    """Returns a row for each sentence pair, then all of them packed in one row."""
    return batch([*([pair] for pair in PAIRS), PAIRS])


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Returns float64 numbers of a normal distribution."""
    return np.random.default_rng(seed).normal(size=shape)


def normal32(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(normal(*shape, seed=seed), jnp.float32)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softmax(x: np.ndarray) -> np.ndarray:
    """Returns the softmax over the last axis in float64."""
    e = np.exp(np.float64(x) - np.float64(x).max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def assert_close(
    found: Any, expected: Any, atol: float = 1e-5, rtol: float = 1e-7
) -> None:
    """Compares two trees of arrays."""
    compare = functools.partial(np.testing.assert_allclose, atol=atol, rtol=rtol)
    jax.tree.map(compare, found, expected)


def assert_equal(found: Any, expected: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, found, expected)
