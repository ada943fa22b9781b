"""Linear probes (Alain and Bengio 2016)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax


class Probe(NamedTuple):
    """A linear classifier of activations, float32."""

    weights_DC: jax.Array
    bias_C: jax.Array

    def logits(self, x_ND: jax.Array) -> jax.Array:
        """Returns the logits of the classes, NC."""
        return x_ND @ self.weights_DC + self.bias_C[None]


def fit_probe(
    x_ND: jax.Array,
    labels_N: jax.Array,
    num_classes: int,
    l2: float = 1.0,
    max_steps: int = 1000,
) -> Probe:
    """Fits a multinomial logistic regression to activations.

    It minimizes Σ_n −log p(label_n) + ½ l2 ‖W‖² by L-BFGS. Standardize features of very
    different sizes.

    Args:
      x_ND: Activations of N tokens or sentences, such as
        `record(…).values['encoder/layer_1/resid_post'][valid]`.
      labels_N: int32 classes.
      l2: Strength of the penalty. If 0, separable classes have no minimum.

    Raises:
      ValueError: The numbers of rows differ.
    """
    if len(x_ND) != len(labels_N):
        raise ValueError(
            f'labels_N: {len(labels_N)} labels for {len(x_ND)} activations. Pass one '
            'per activation.'
        )
    x_ND = jnp.asarray(x_ND, jnp.float32)

    def loss(probe: Probe) -> jax.Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(
            probe.logits(x_ND), labels_N
        )
        penalty = 0.5 * l2 * jnp.square(probe.weights_DC).sum()
        return (losses.sum() + penalty) / len(x_ND)

    optimizer = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)

    def step(carry):
        probe, state, count, _ = carry
        value, grad = value_and_grad(probe, state=state)
        update, state = optimizer.update(
            grad, state, probe, value=value, grad=grad, value_fn=loss
        )
        probe = jax.tree.map(jnp.add, probe, update)
        return probe, state, count + 1, grad

    def goes_on(carry):
        _, _, count, grad = carry
        return (count < max_steps) & (optax.tree.norm(grad) > 1e-6)

    zeros = jnp.zeros((x_ND.shape[1], num_classes)), jnp.zeros(num_classes)
    probe = Probe(*zeros)
    ones = jax.tree.map(jnp.ones_like, probe)
    carry = probe, optimizer.init(probe), 0, ones
    probe, *_ = jax.lax.while_loop(goes_on, step, carry)
    return probe
