"""Gradient norms of the layers of models that have not learnt anything yet.

With post-norm the gradients of the last layers are large at initialisation, however
deep the model is; with pre-norm they shrink with the depth L. For the last matrix of a
feed-forward network, in the last layer, Xiong et al. (2020, theorem 1) bound the norm
by the order of d_model √(ln d_model), and with pre-norm by that divided by √L.

This imports JAX; the rest of a report does not.
"""

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stop
from experiments.config import load
from experiments.config.load import nest
from experiments.config.schema import seed
from experiments.data.batches import Position
from experiments.errors import UserError
from experiments.reports.arms import Arm
from experiments.reports.inside.attended import run_once
from experiments.runs.reading import Run
from experiments.training import setup
from experiments.training.programs import Programs
from experiments.training.setup import Memo
from flaxformer_lite.layers.scanned_stack import unstack_layers
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.loss import loss_sums

# What the first gradients follow from, beside the seeds.
_SECTIONS = ('data', 'tokenizer.', 'batch.', 'model.', 'train.label_smoothing')
_MATRIX = ('feed_forward', 'down', 'kernel')


class FirstGradients(NamedTuple):
    """The norms of an arm's first gradients.

    Attributes:
      arm: its name.
      norms: stack → a list for each seed: the Frobenius norm of the gradient of each
        layer's last feed-forward matrix.
    """

    arm: str
    norms: dict[str, list[list[float]]]


def measure(arms: Sequence[Arm]) -> list[FirstGradients]:
    """The first gradients of each arm, on the first batch of each of its runs.

    An arm that begins as an earlier one does, and differs in its optimizer alone, is
    left out; so is one whose layers have no such matrix, or that began with the
    parameters of another run.

    Raises:
      UserError: a run's text or model is not there any more.
    """
    memo = Memo()
    seen = []
    found = []
    for arm in arms:
        beginning = _beginning(arm.runs[0])
        if beginning in seen or arm.runs[0].config.get('init_from'):
            continue
        seen.append(beginning)
        norms: dict[str, list[list[float]]] = {}
        for run in arm.runs:
            for stack, layers in _of_run(run, memo).items():
                norms.setdefault(stack, []).append(layers)
        if norms:
            found.append(FirstGradients(arm.name, norms))
    return found


def _beginning(run: Run) -> dict[str, Any]:
    return {name: x for name, x in run.config.items() if name.startswith(_SECTIONS)}


def _of_run(run: Run, memo: Memo) -> dict[str, list[float]]:
    """Stack → the norm of each layer, of a run's first parameters and first batch."""
    try:
        config = load.from_dict(nest(run.config))
    except UserError as error:
        raise UserError(f'{run.path}: {error}') from None
    run_setup = setup.prepare(config, run.path, Screen(io.StringIO()), Stop(), memo)
    devices = run_setup.devices
    key = jax.random.key(seed(config, 'init_seed'))
    key = jax.device_put(key, devices.everywhere())
    state = Programs(run_setup).first_state(key)
    batch, _ = next(run_setup.batches.iterate(Position()))
    placed = jax.device_put(batch, devices.rows())
    smoothing = config.train.label_smoothing
    return layer_norms(run_setup.model, state.variables, placed, smoothing)


def layer_norms(
    model: Model, variables: Any, batch: Any, label_smoothing: float
) -> dict[str, list[float]]:
    """Stack → the norm of the gradient of each layer's last feed-forward matrix.

    The gradient is that of the mean loss of a token, in nats, without dropout.
    """

    def loss(params: Any, others: Any, batch: Any) -> jax.Array:
        sums = loss_sums(model, others | {'params': params}, batch, label_smoothing)
        return sums.loss / sums.tokens

    params = variables['params']
    others = {name: x for name, x in variables.items() if name != 'params'}
    found = run_once(jax.grad(loss), params, others, batch)
    gradients: Any = flatten_dict(unstack_layers(found))
    norms: dict[str, dict[int, float]] = {}
    for path, gradient in gradients.items():
        if path[-3:] == _MATRIX and path[1].startswith('layer_'):
            layer = int(path[1].removeprefix('layer_'))
            norms.setdefault(path[0], {})[layer] = float(np.linalg.norm(gradient))
    return {
        stack: [layers[i] for i in sorted(layers)] for stack, layers in norms.items()
    }
