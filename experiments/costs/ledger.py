"""What training a config costs, from shapes alone: nothing is compiled or computed."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr
from jax.interpreters import partial_eval

from experiments.config import check
from experiments.config.schema import ExperimentConfig
from experiments.costs import flops, share
from experiments.errors import UserError
from experiments.optimizers import frozen, optimizer
from flaxformer_lite.models.base import Model
from flaxformer_lite.remat import NONE
from flaxformer_lite.training import freezing
from flaxformer_lite.training.batch import BATCH_ARRAYS
from flaxformer_lite.training.loss import loss_sums
from flaxformer_lite.training.train_step import TrainState, init_state

# Name of a module → the part of its stack that its parameters and FLOPs belong to. The
# first of these names in a path counts.
SUBLAYERS = {
    'positions': 'positions',
    'self_attention': 'self-attention',
    'cross_attention': 'cross-attention',
    'feed_forward': 'feed-forward',
    'norm': 'norms',
    'embedding_norm': 'norms',
}
STACKS = ('encoder', 'decoder')
_OF_A_STACK = (*SUBLAYERS.values(), 'other')
PARTS = [
    'embeddings',
    *(f'encoder {name}' for name in _OF_A_STACK),
    *(f'decoder {name}' for name in _OF_A_STACK),
    'logits',
]

# Megabytes of a process that trains on a CPU, as `benchmarks/memory.py` measured them.
RUNTIME = 333  # always
COMPILING = 125  # more while the step is compiled
WORKING = 100  # more during a step, beside its arrays
# What is added to the first two for each thousand operations of the step.
RUNTIME_BY_SIZE = 42
COMPILING_BY_SIZE = 36


def ledger(
    config: ExperimentConfig, model: Model | None = None
) -> dict[str, dict[str, int]]:
    """The costs of the model and of a training step, over all devices.

    Args:
      model: the config's, where it is there already.

    Returns:
      parameters: how many, by part, and their total.
      trained: those of them that `train.freeze` leaves to be trained.
      flops_per_token: of the matrix products of a training step, forward and backward,
        by part, and their total. A token is a position of the target with the position
        of the source beside it, padding or not. A forward pass alone takes a third.
        What `train.remat` has computed twice counts once here.
      recomputed: FLOPs a token that `train.remat` has computed again in the backward
        pass, beside those.
      bytes: of the parameters, their gradients, the optimizer's state, and what the
        forward pass keeps for the backward pass with `train.remat`, before the compiler
        chooses what to compute again instead.
      device: the bytes of one device of the mesh, and the number of devices, as
        `share.of_device`; and `flops`, its products of a batch.
      peak: bytes, about the most that the process takes while it trains on one CPU
        device.
      batch: rows, their length, and tokens: positions of the target.

    Raises:
      UserError: a field that cannot be worked with.
    """
    check.check_config(config)
    rows, length = _shape(config)
    if model is None:
        model = check.build_model(config, config.tokenizer.vocab_size)
    held = frozen.paths(config, model)
    state = _abstract_state(config, model, held)
    params = jax.tree.leaves(state.params)
    trained, _ = freezing.split(state.params, held)
    number = len(jax.tree.leaves(trained))
    rows_at_once = rows // config.train.accumulate
    shape = rows_at_once, length
    plain = _step(model, state.variables, shape, held)
    jaxpr = plain
    if config.train.remat != NONE:
        rematerialised = model.with_remat(config.train.remat)
        jaxpr = _step(rematerialised, state.variables, shape, held)
    kept = jaxpr.outvars[:-number]
    gradients = jaxpr.outvars[-number:]
    step_flops = flops.flops(plain)
    again = flops.flops(jaxpr).total() - step_flops.total()
    arrays = {
        'parameters': flops.size(params),
        'gradients': flops.size(var.aval for var in gradients),
        'optimizer': flops.size(jax.tree.leaves(state.opt_state)),
        'activations': flops.kept(jaxpr, kept),
    }
    flops_per_token = _by_part(step_flops.items(), rows_at_once * length)
    device = share.of_device(config.mesh, state, arrays, trained)
    device['flops'] = _flops_of_device(config, state.params, flops_per_token)
    return {
        'parameters': _by_part(_sizes(state.params)),
        'trained': _by_part(_sizes(trained)),
        'flops_per_token': flops_per_token,
        'recomputed': {'flops_per_token': round(again / (rows_at_once * length))},
        'bytes': arrays,
        'device': device,
        'peak': {'process': _peak(arrays, flops.operations(jaxpr))},
        'batch': {'rows': rows, 'length': length, 'tokens': rows * length},
    }


def _flops_of_device(
    config: ExperimentConfig, params: Any, flops_per_token: dict[str, int]
) -> int:
    """Those of a batch that one device of the mesh makes, empty rows included."""
    rows, length = _shape(config)
    own_rows = share.rows_of_device(config.mesh, rows, config.train.accumulate)
    shares = share.of_products(config.mesh, params, _part)
    # Logits of a tied table are divided as the table is.
    shares.setdefault('logits', shares['embeddings'])
    of_a_token = 0.0
    for part, count in flops_per_token.items():
        if part != 'total':
            of_a_token += count * shares.get(part, 1.0)
    return round(of_a_token * own_rows * length)


def _peak(arrays: dict[str, int], operations: int) -> int:
    """Bytes of the process at its largest: while compiling the step, or during one.

    Parameters and the optimizer's state are there all the time.
    """
    size = operations / 1000
    mega = 10**6
    runtime = (RUNTIME + RUNTIME_BY_SIZE * size) * mega
    compiling = (COMPILING + COMPILING_BY_SIZE * size) * mega
    in_a_step = WORKING * mega + arrays['gradients'] + arrays['activations']
    always = runtime + arrays['parameters'] + arrays['optimizer']
    return round(always + max(compiling, in_a_step))


def _shape(config: ExperimentConfig) -> tuple[int, int]:
    """Rows and length of a batch of the longest rows; shorter text has shorter rows."""
    length = config.batch.max_length
    parts = config.train.accumulate
    rows = config.batch.tokens // length // parts * parts
    if not rows:
        raise UserError(
            f'batch.tokens={config.batch.tokens} is less than a row of '
            f'batch.max_length={length} in each of train.accumulate={parts} parts; '
            f'give at least {length * parts}'
        )
    return rows, length


def _abstract_state(
    config: ExperimentConfig, model: Model, held: frozenset[str]
) -> TrainState:
    """The shapes of the state that training begins with."""
    try:
        update, _ = optimizer.make(config, model)
        return jax.eval_shape(
            lambda: init_state(model, update, jax.random.key(0), frozen=held)
        )
    except ValueError as error:
        raise UserError(str(error)) from None


def _step(
    model: Model, variables: Any, shape: tuple[int, int], held: frozenset[str]
) -> Jaxpr:
    """Forward and backward pass, which returns what is kept between, then gradients."""

    def step(variables, batch, key):
        trained, rest = freezing.split(variables['params'], held)

        def loss(trained):
            changed = variables | {'params': freezing.join(trained, rest)}
            return loss_sums(model, changed, batch, dropout_key=key).loss

        value, backward = jax.vjp(loss, trained)
        # The leaves of the function `backward` are what it keeps of the forward pass.
        return jax.tree.leaves(backward), backward(jnp.ones_like(value))

    batch = {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name in BATCH_ARRAYS}
    key = jax.eval_shape(jax.random.key, 0)
    jaxpr = jax.make_jaxpr(step)(variables, batch, key).jaxpr
    if not held:
        return jaxpr
    # A gradient of our own is of all operands; the compiler drops what nobody asks for.
    used, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), True)
    return used


def _sizes(tree: Any) -> list[tuple[str, int]]:
    return [(path, leaf.size) for path, leaf in _paths(tree)]


def _paths(tree: Any) -> Iterable[tuple[str, Any]]:
    for path, leaf in jax.tree.leaves_with_path(tree):
        yield jax.tree_util.keystr(path, simple=True, separator='/'), leaf


def _by_part(counts: Iterable[tuple[str, int]], share: int = 1) -> dict[str, int]:
    """The sum of the counts in each part, and their total, divided by `share`."""
    total = Counter()
    for path, count in counts:
        total[_part(path)] += count
    parts = {part: round(total[part] / share) for part in PARTS if total[part]}
    return parts | {'total': round(total.total() / share)}


def _part(path: str) -> str:
    """`encoder/layer_0/self_attention/query/kernel` → `encoder self-attention`."""
    words = re.findall('[a-z]+(?:_[a-z]+)*', path)
    tops = [word.split('_')[0] for word in words]
    stack = next((stack for stack in STACKS if stack in tops), None)
    if stack is not None:
        sublayer = next(
            (SUBLAYERS[name] for name in SUBLAYERS if name in words), 'other'
        )
        return f'{stack} {sublayer}'
    if any(word.endswith('embedding') for word in words):
        return 'embeddings'
    return 'logits'
