"""Training costs from shapes: nothing is compiled or computed."""

import math
import re
from collections import Counter
from typing import Any

import jax
from jax.extend.core import Jaxpr
from jax.interpreters import partial_eval
from jax.sharding import AbstractMesh

from experiments.config import components
from experiments.config.schema import BatchConfig, ExperimentConfig
from experiments.costs.flops import flops as count_flops
from experiments.data.collate import abstract_batch
from experiments.errors import UserError, user_errors
from experiments.runtime.mesh import check_divides
from flaxformer_lite.losses.base import Loss
from flaxformer_lite.models.base import Model
from flaxformer_lite.remat import NONE
from flaxformer_lite.sharding import AXES, state_shardings
from flaxformer_lite.training import freezing
from flaxformer_lite.training.loss import DEFAULT_LOSS, loss_sums
from flaxformer_lite.training.train_step import TrainState, init_state

# Name of a module → the part of its stack for its parameters and FLOPs. The first of
# these names that a path contains counts.
SUBLAYERS = {
    'positions': 'positions',
    'self_attention': 'self-attention',
    'cross_attention': 'cross-attention',
    'feed_forward': 'feed-forward',
    'norm': 'norms',
    'embedding_norm': 'norms',
}
STACKS = ('encoder', 'decoder')
_SINGLE_DEVICE = AbstractMesh((1,) * len(AXES), AXES)  # a mesh of one device
_STACK_COMPONENTS = (*SUBLAYERS.values(), 'other')
PARTS = [
    'embeddings',
    *(f'{stack} {name}' for stack in STACKS for name in _STACK_COMPONENTS),
    'logits',
]


def ledger(config: ExperimentConfig) -> dict[str, dict[str, int]]:
    """Computes the costs of a training step, over all devices.

    Returns:
      parameters, trained: Number of parameters by part, and in total. `trained`
        excludes those of `train.freeze`.
      flops_per_token: FLOPs of the matrix products of a training step, by part and in
        total. A token is a target position with its source position, including padding.
        A forward pass takes a third of them, and the backward pass the rest.
      recomputed: Additional FLOPs per token that `train.remat` recomputes.
      bytes: Bytes of the parameters, their gradients and the optimizer's state.
      device: The bytes on one device of the mesh, and the number of devices. An empty
        `mesh.data` counts as 1, because replicas don't change the bytes of a device.
      batch: Rows, their length, and tokens, which are target positions.
      flops: FLOPs of a batch, and of the `train.steps` of training.
    """
    run_components = components.build(config)
    accumulate = config.train.accumulate
    rows, length = batch_shape(config.batch, accumulate)
    state = _abstract_state(run_components)
    trained, _ = freezing.split(state.params, run_components.frozen)
    loss = None if config.train.teacher else run_components.loss
    arguments = (
        state.variables,
        loss,
        run_components.frozen,
        run_components.tokenizer.source_features,
    )
    part = rows // accumulate, length
    base_flops = flops_per_token(part, run_components.model, *arguments)
    recomputed_flops = 0
    if config.train.remat != NONE:
        rematerialized_model = run_components.model.with_remat(config.train.remat)
        rematerialized_flops = flops_per_token(part, rematerialized_model, *arguments)
        recomputed_flops = rematerialized_flops['total'] - base_flops['total']
    arrays = {
        'parameters': state.params,
        'gradients': trained,
        'optimizer': state.opt_state,
    }
    tokens = rows * length
    flops = base_flops['total'] * tokens
    numbers = [getattr(config.mesh, axis) or 1 for axis in AXES]
    mesh = AbstractMesh(tuple(numbers), AXES)
    check_divides(mesh, state.params)
    return {
        'parameters': _parameters(state.params),
        'trained': _parameters(trained),
        'flops_per_token': base_flops,
        'recomputed': {'flops_per_token': recomputed_flops},
        'bytes': _bytes(arrays, _SINGLE_DEVICE),
        'device': {'devices': mesh.size, **_bytes(arrays, mesh)},
        'batch': {'rows': rows, 'length': length, 'tokens': tokens},
        'flops': {'batch': flops, 'training': flops * config.train.steps},
    }


def flops_per_token(
    shape: tuple[int, int],
    model: Model,
    variables: Any,
    loss: Loss | None,
    frozen: frozenset[str] = frozenset(),
    source_features: int | None = None,
) -> dict[str, int]:
    """Computes FLOPs of a training step by part and in total, without a teacher's.

    Args:
      shape: Rows of a microbatch, and their length.
      variables: Arrays or their shapes.
      loss: Defaults to the default loss, as for a loss with a teacher.
      frozen: Paths of the parameters that are not trained.

    Raises:
      ValueError: As `flops.flops`.
    """
    batch = abstract_batch(shape, source_features)
    step = _step(model, variables, batch, frozen, loss or DEFAULT_LOSS)
    return _by_part(count_flops(step), math.prod(shape))


def _bytes(arrays: dict[str, Any], mesh: AbstractMesh) -> dict[str, int]:

    def size(x, sharding):
        shape = sharding.shard_shape(x.shape)
        return math.prod(shape) * x.dtype.itemsize

    found = {}
    for name, tree in arrays.items():
        sizes = jax.tree.map(size, tree, state_shardings(tree, mesh))
        found[name] = sum(jax.tree.leaves(sizes))
    return found


def batch_shape(batch: BatchConfig, accumulate: int) -> tuple[int, int]:
    """Returns the rows of a batch, and their length."""
    length = batch.max_length
    multiple = batch.rows_multiple * accumulate
    rows = batch.tokens // length // multiple * multiple
    if not rows:
        raise UserError(
            f'batch.tokens={batch.tokens} is less than one batch: '
            f'batch.rows_multiple={batch.rows_multiple} × batch.max_length={length} × '
            f'train.accumulate={accumulate}. Set it to at least {length * multiple}.'
        )
    return rows, length


def _abstract_state(run_components: components.Components) -> TrainState:
    optimizer, _ = run_components.optimizer.build(run_components.model)

    def init():
        key = jax.random.key(0)
        return init_state(
            run_components.model, optimizer, key, frozen=run_components.frozen
        )

    with user_errors():
        return jax.eval_shape(init)


def _step(
    model: Model,
    variables: Any,
    batch: dict[str, jax.ShapeDtypeStruct],
    frozen: frozenset[str],
    loss: Loss,
) -> Jaxpr:

    def gradients(variables, batch, key):
        trained, rest = freezing.split(variables['params'], frozen)

        def total(trained):
            changed = variables | {'params': freezing.join(trained, rest)}
            return loss_sums(model, changed, batch, loss, key).loss

        return jax.grad(total)(trained)

    key = jax.eval_shape(jax.random.key, 0)
    jaxpr = jax.make_jaxpr(gradients)(variables, batch, key).jaxpr
    if not frozen:
        return jaxpr
    # Our custom gradients cover all operands, and the compiler drops unused ones.
    used, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), True)
    return used


def _parameters(params: Any) -> dict[str, int]:
    arrays = freezing.paths(params)
    return _by_part({path: array.size for path, array in arrays.items()})


def _by_part(counts: dict[str, int], share: int = 1) -> dict[str, int]:
    total = Counter()
    for path, count in counts.items():
        total[_part(path)] += count
    found = {}
    for part in PARTS:
        if total[part]:
            found[part] = round(total[part] / share)
    return found | {'total': round(total.total() / share)}


def _part(path: str) -> str:
    words = re.findall('[a-z]+(?:_[a-z]+)*', path)
    tops = [word.split('_')[0] for word in words]
    for stack in STACKS:
        if stack in tops:
            sublayers = [part for name, part in SUBLAYERS.items() if name in words]
            return f'{stack} {[*sublayers, "other"][0]}'
    if any(word.endswith('embedding') for word in words):
        return 'embeddings'
    return 'logits'
