"""What training a config costs, from shapes alone: nothing is compiled or computed."""

import math
import re
from collections import Counter
from typing import Any

import jax
from jax.extend.core import Jaxpr
from jax.interpreters import partial_eval
from jax.sharding import AbstractMesh

from experiments.config import check
from experiments.config.schema import ExperimentConfig
from experiments.costs.flops import flops as count_flops
from experiments.data.collate import abstract_batch
from experiments.errors import UserError, user_errors
from experiments.optimizers import frozen, optimizer
from experiments.runtime.mesh import check_divides
from flaxformer_lite.config.spec import Spec
from flaxformer_lite.models.base import Model
from flaxformer_lite.remat import NONE
from flaxformer_lite.sharding import AXES, state_shardings
from flaxformer_lite.training import freezing
from flaxformer_lite.training.loss import DEFAULT_LOSS, loss_sums
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
_ALONE = AbstractMesh((1,) * len(AXES), AXES)  # one device, which has everything
_OF_A_STACK = (*SUBLAYERS.values(), 'other')
PARTS = [
    'embeddings',
    *(f'{stack} {name}' for stack in STACKS for name in _OF_A_STACK),
    'logits',
]


def ledger(config: ExperimentConfig) -> dict[str, dict[str, int]]:
    """The costs of the model and of a training step, over all devices.

    Returns:
      parameters: how many, by part, and their total.
      trained: those of them that `train.freeze` leaves to be trained.
      flops_per_token: of the matrix products of a training step, forward and backward,
        by part, and their total. A token is a position of the target with the position
        of the source beside it, padding or not. A forward pass alone takes a third.
        What `train.remat` has computed twice counts once here.
      recomputed: FLOPs a token that `train.remat` has computed again in the backward
        pass, beside those.
      bytes: of the parameters, their gradients and the optimizer's state.
      device: the same of one device of the mesh, and the number of devices. Where
        `mesh.data` is empty, it is as many as the other axes need.
      batch: rows, their length, and tokens: positions of the target.
      flops: of a batch, and of the `train.steps` of training.

    Raises:
      UserError: a field that cannot be worked with.
    """
    check.check_config(config)
    rows, length = batch_shape(config)
    model = check.build_model(config)
    held = frozen.paths(config, model)
    state = _abstract_state(config, model, held)
    trained, _ = freezing.split(state.params, held)
    once = flops_per_token(config, model, state.variables)
    again = 0
    if config.train.remat != NONE:
        rematerialised = model.with_remat(config.train.remat)
        twice = flops_per_token(config, rematerialised, state.variables)
        again = twice['total'] - once['total']
    arrays = {
        'parameters': state.params,
        'gradients': trained,
        'optimizer': state.opt_state,
    }
    tokens = rows * length
    flops = once['total'] * tokens
    numbers = [getattr(config.mesh, axis) or 1 for axis in AXES]
    mesh = AbstractMesh(tuple(numbers), AXES)
    check_divides(mesh, state.params)
    return {
        'parameters': _parameters(state.params),
        'trained': _parameters(trained),
        'flops_per_token': once,
        'recomputed': {'flops_per_token': again},
        'bytes': _bytes(arrays, _ALONE),
        'device': {'devices': mesh.size, **_bytes(arrays, mesh)},
        'batch': {'rows': rows, 'length': length, 'tokens': tokens},
        'flops': {'batch': flops, 'training': flops * config.train.steps},
    }


def flops_per_token(
    config: ExperimentConfig, model: Model, variables: Any
) -> dict[str, int]:
    """FLOPs of a training step by part and in all, as `ledger` has them.

    Those of a teacher (`train.teacher`) are not among them.

    Args:
      variables: the model's, or their shapes.

    Raises:
      ValueError: there are products in a `while` loop.
    """
    rows, length = batch_shape(config)
    rows //= config.train.accumulate
    loss = DEFAULT_LOSS if config.train.teacher else config.train.loss
    features = check.source_features(config, model)
    batch = abstract_batch((rows, length), features)
    held = frozen.paths(config, model)
    step = _step(model, variables, batch, held, loss)
    return _by_part(count_flops(step), rows * length)


def _bytes(arrays: dict[str, Any], mesh: AbstractMesh) -> dict[str, int]:
    """By name the bytes of the parts of trees that one device of a mesh has."""

    def size(x, sharding):
        shape = sharding.shard_shape(x.shape)
        return math.prod(shape) * x.dtype.itemsize

    found = {}
    for name, tree in arrays.items():
        sizes = jax.tree.map(size, tree, state_shardings(tree, mesh))
        found[name] = sum(jax.tree.leaves(sizes))
    return found


def batch_shape(config: ExperimentConfig) -> tuple[int, int]:
    """Rows and length of a batch of the longest rows; shorter text has shorter rows."""
    length = config.batch.max_length
    parts = config.train.accumulate
    multiple = config.batch.rows_multiple * parts
    rows = config.batch.tokens // length // multiple * multiple
    if not rows:
        raise UserError(
            f'batch.tokens={config.batch.tokens} is less than '
            f'batch.rows_multiple={config.batch.rows_multiple} rows of '
            f'batch.max_length={length} in each of train.accumulate={parts} parts; '
            f'give at least {length * multiple}'
        )
    return rows, length


def _abstract_state(
    config: ExperimentConfig, model: Model, held: frozenset[str]
) -> TrainState:
    """The shapes of the state that training begins with."""
    with user_errors():
        update, _ = optimizer.make(config, model)
        return jax.eval_shape(
            lambda: init_state(model, update, jax.random.key(0), frozen=held)
        )


def _step(
    model: Model,
    variables: Any,
    batch: dict[str, jax.ShapeDtypeStruct],
    held: frozenset[str],
    loss: Spec,
) -> Jaxpr:
    """Forward and backward pass, which returns the gradients."""

    def gradients(variables, batch, key):
        trained, rest = freezing.split(variables['params'], held)

        def total(trained):
            changed = variables | {'params': freezing.join(trained, rest)}
            return loss_sums(model, changed, batch, loss, key).loss

        return jax.grad(total)(trained)

    key = jax.eval_shape(jax.random.key, 0)
    jaxpr = jax.make_jaxpr(gradients)(variables, batch, key).jaxpr
    if not held:
        return jaxpr
    # A gradient of our own is of all operands; the compiler drops what nobody asks for.
    used, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), True)
    return used


def _parameters(params: Any) -> dict[str, int]:
    """How many parameters, by part, and their total."""
    arrays = freezing.paths(params)
    return _by_part({path: array.size for path, array in arrays.items()})


def _by_part(counts: dict[str, int], share: int = 1) -> dict[str, int]:
    """The sum of the counts in each part, and their total, divided by `share`."""
    total = Counter()
    for path, count in counts.items():
        total[_part(path)] += count
    found = {}
    for part in PARTS:
        if total[part]:
            found[part] = round(total[part] / share)
    return found | {'total': round(total.total() / share)}


def _part(path: str) -> str:
    """`encoder/layer_0/self_attention/query/kernel` → `encoder self-attention`."""
    words = re.findall('[a-z]+(?:_[a-z]+)*', path)
    tops = [word.split('_')[0] for word in words]
    for stack in STACKS:
        if stack in tops:
            sublayers = [part for name, part in SUBLAYERS.items() if name in words]
            return f'{stack} {[*sublayers, "other"][0]}'
    if any(word.endswith('embedding') for word in words):
        return 'embeddings'
    return 'logits'
