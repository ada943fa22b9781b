"""The optimizer of a config (paper §5.3)."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import optax

from experiments.optimizers import eval_params, optax_specs
from flaxformer_lite.config.spec import Component
from flaxformer_lite.layers.scanned_stack import stack_layers, unstack_layers
from flaxformer_lite.models.base import Model
from flaxformer_lite.training import learning_rates
from flaxformer_lite.training.schedules.cosine import Cosine

LONG = 1 << 30  # steps, more than in any training
# Optimizers with the fields b1, b2, eps and weight_decay. Others have arguments in
# their spec.
BY_FIELDS = ('adam', 'adamw')
ADAMS = ('b1', 'b2', 'eps', 'weight_decay')
# Optimizers whose step size depends on the learning rate, not on the gradient's size.
# An initialization's learning rates apply to them. Scaling updates would also break the
# sequences that schedule-free optimizers keep.
SCALE_INVARIANT = (
    'adabelief adam adamax adamaxw adamw amsgrad lion radam sign_sgd signum yogi'
).split()
# Optimizers that update each entry from its own gradients, so stacked layers make no
# difference. A test checks this.
ENTRYWISE = (
    'adabelief adadelta adagrad adam adamax adamaxw adamw adan amsgrad lion radam '
    'rmsprop sgd sign_sgd signum yogi contrib.schedule_free_adamw '
    'contrib.schedule_free_sgd'
).split()


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """The optimizer of a config, checked; `build` makes it for a training.

    Attributes:
      component: Optax's function or the user's, with its arguments.
      schedule: The learning rate by number of updates. It is made for `LONG` steps,
        because the number of steps is known only with the data.
      has_lr_multipliers: Whether the model's initialization multiplies the learning
        rates of some parameters, as μP does.
    """

    component: Component
    schedule: optax.Schedule
    clip: float
    ema: float
    has_lr_multipliers: bool

    @property
    def peak(self) -> float | None:
        """The schedule's peak if it may be traced."""
        if self.component.name in BY_FIELDS and type(self.schedule) is Cosine:
            return self.schedule.peak
        return None

    def build(
        self, model: Model, steps: int = LONG, peak: jax.Array | None = None
    ) -> tuple[optax.GradientTransformation, optax.Schedule]:
        """Returns the optimizer of a model, and its learning rate by number of updates.

        Some schedules depend on `steps`, the length of the training. `peak` replaces
        that of the schedule.
        """
        schedule = learning_rates.with_steps(self.schedule, steps)
        if peak is not None:
            schedule = learning_rates.with_peak(schedule, peak)
        has_output = model.embeddings.tie in ('source_target', 'none')
        update = optax_specs.make(self.component, schedule, has_output)
        if model.scans_layers and self.component.name not in ENTRYWISE:
            update = separately(update, model.layer_periods)
        if self.clip:
            update = optax.chain(optax.clip_by_global_norm(self.clip), update)
        if self.has_lr_multipliers:
            update = optax.chain(update, optax.stateless(_scale_by_multipliers(model)))
        if self.ema:
            update = eval_params.with_ema(update, self.ema)
        return update, schedule


def _scale_by_multipliers(model: Model) -> Any:

    def scale_leaf(path, x):
        return x * model.lr_multiplier(tuple(entry.key for entry in path))

    return lambda updates, params: jax.tree_util.tree_map_with_path(scale_leaf, updates)


def separately(
    optimizer: optax.GradientTransformation, periods: Mapping[str, int]
) -> optax.GradientTransformation:
    """Wraps an optimizer to treat the layers of stacked parameters separately.

    `adafactor`, `lamb` and `contrib.muon` compute updates from whole matrices. The
    program grows with the number of layers.
    """

    def init(params):
        return optimizer.init(unstack_layers(params, periods))

    def update(updates, state, params=None):
        updates, state = optimizer.update(
            unstack_layers(updates, periods), state, unstack_layers(params, periods)
        )
        return stack_layers(updates, periods), state

    return optax.GradientTransformation(init, update)
