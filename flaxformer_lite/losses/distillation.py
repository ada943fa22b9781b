"""Word-level knowledge distillation (Kim and Rush 2016, §3.1; Hinton et al. 2015)."""

from typing import Annotated, Any

import jax
import jax.numpy as jnp

from flaxformer_lite.losses.base import Loss, smoothed_cross_entropy
from flaxformer_lite.training.batch import source_and_inputs
from flaxformer_lite.validation import Range, Rate


class Distillation(Loss):
    """Cross-entropy with the labels and with a teacher's distribution.

    (1 − α) CE(label) − α Σ_v q(v) log p(v), with q from the teacher without dropout.
    The second sum, without α, is reported as `distillation_teacher`.

    The teacher's log-probabilities take 4 B T V bytes per microbatch. In a compiled
    step, its variables are constants unless you pass the loss as an argument:

        def step(state, batch, key, loss):
            return make_train_step(model, optimizer, loss=loss)(state, batch, key)

    Sources: Kim and Rush 2016, §3.1; Hinton et al. 2015. Use it to train a small model
    with the help of a large one.

    Attributes:
      teacher: A model with the same vocabulary, or that of an `Ensemble`.
      weight: α.
      label_smoothing: Smoothing of the cross-entropy.

    Raises:
      ValueError: The teacher is missing.
    """

    arrays = ('teacher_variables',)
    targets = ('labels', 'teacher_log_p')
    teacher: Any = None
    teacher_variables: Any = None
    weight: Annotated[float, Range(at_least=0, at_most=1)] = 0.5
    label_smoothing: Rate = 0.0

    def __post_init__(self):
        super().__post_init__()
        if self.teacher is None:
            raise ValueError(
                'Distillation needs a teacher. Give a model and its variables, such as '
                'Distillation(teacher=model, teacher_variables=variables).'
            )

    def prepare(self, batch):
        logits_BTV = self.teacher.apply(
            self.teacher_variables, *source_and_inputs(batch)
        )
        log_p_BTV = jax.lax.stop_gradient(jax.nn.log_softmax(logits_BTV))
        return {**batch, 'teacher_log_p': log_p_BTV}

    def __call__(self, logits, batch):
        """As `Loss.__call__`, for a batch that `prepare` returned."""
        of_labels_BT = smoothed_cross_entropy(
            logits, batch['labels'], self.label_smoothing
        )
        of_teacher_BT = _cross_entropy(logits, batch['teacher_log_p'])
        return (1 - self.weight) * of_labels_BT + self.weight * of_teacher_BT

    def metrics(self, logits, batch):
        of_teacher_BT = _cross_entropy(logits, batch['teacher_log_p'])
        return {'distillation_teacher': of_teacher_BT}


def _cross_entropy(logits_BTV: jax.Array, teacher_log_p_BTV: jax.Array) -> jax.Array:
    return -(jnp.exp(teacher_log_p_BTV) * jax.nn.log_softmax(logits_BTV)).sum(-1)
