"""Optimizers of a model that scans its layers, whose parameters are stacked."""

from collections.abc import Mapping

import optax

from flaxformer_lite.layers.scanned_stack import stack_layers, unstack_layers

# These move each number by its own gradients alone, and so do not see a difference
# between the matrix of one layer and those of all. A test holds it.
ENTRYWISE = (
    *('adabelief', 'adadelta', 'adagrad', 'adam', 'adamax', 'adamaxw', 'adamw', 'adan'),
    *('amsgrad', 'lion', 'radam', 'rmsprop', 'sgd', 'sign_sgd', 'signum', 'yogi'),
    *('contrib.schedule_free_adamw', 'contrib.schedule_free_sgd'),
)


def separately(
    optimizer: optax.GradientTransformation, periods: Mapping[str, int]
) -> optax.GradientTransformation:
    """The optimizer that treats each layer's part of a stacked parameter by itself.

    Its updates are those of the same model with separate layers, which `adafactor`,
    `lamb` or `contrib.muon` choose by whole matrices. Its state is of separate layers;
    the program grows with their number.

    Args:
      optimizer: of separate layers.
      periods: the model's `layer_periods`. Parameters that are not trained are missing
        here, so that they cannot be read off the others.
    """

    def init(params):
        return optimizer.init(unstack_layers(params, periods))

    def update(updates, state, params=None):
        updates, state = optimizer.update(
            unstack_layers(updates, periods), state, unstack_layers(params, periods)
        )
        return stack_layers(updates, periods), state

    return optax.GradientTransformation(init, update)
