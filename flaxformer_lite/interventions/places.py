"""Tracks the place of a forward pass: its stack, steps, positions and padding."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from flaxformer_lite.interventions.names import Where
from flaxformer_lite.kv_cache import BeamState
from flaxformer_lite.masks import AttentionContext, TokenBatch


class Places:
    """The place that a forward pass has reached, without a name.

    Args:
      row_B: Index of each row in the batch. Defaults to the rows of the pass.
      source_length: Number of tokens before the target in a decoder-only model.

    Attributes:
      current: The place inside of a stack, otherwise None.
    """

    def __init__(self, row_B: jax.Array | None = None, source_length: int = 0):
        self._row_B = row_B
        self._source_length = source_length
        self._target: TokenBatch | None = None
        self._source_mask_BS: jax.Array | None = None
        self.current: Where | None = None

    def of_rows(
        self,
        value: jax.Array,
        positions_BT: jax.Array | None = None,
        mask_BT: jax.Array | None = None,
    ) -> Where:
        """Returns the place of an array BT… outside of stacks, without a step."""
        batch, length = value.shape[:2]
        row_B = jnp.arange(batch) if self._row_B is None else self._row_B
        index_BT = jnp.broadcast_to(jnp.arange(length)[None], (batch, length))
        return Where('', '', None, positions_BT, mask_BT, index_BT, row_B)

    def of_source(self, x_BSD: jax.Array, positions_BS: jax.Array) -> Where:
        return self.of_rows(x_BSD, positions_BS, self._source_mask_BS)

    def of_inputs(self, logits_BTV: jax.Array, inputs: TokenBatch) -> Where:
        where = self.of_rows(logits_BTV, inputs.positions_BT, inputs.valid_BT)
        return where._replace(step_BT=inputs.positions_BT)

    def of_step(self, logits_BNV: jax.Array, beam: BeamState) -> Where:
        step_BN = jnp.broadcast_to(beam.step, logits_BNV.shape[:2])
        where = self.of_rows(logits_BNV, step_BN)
        return where._replace(step_BT=step_BN, index_BT=step_BN)

    @contextlib.contextmanager
    def in_target(self, inputs: TokenBatch) -> Iterator[None]:
        self._target = inputs
        try:
            yield
        finally:
            self._target = None

    @contextlib.contextmanager
    def in_stack(
        self, name: str, x_BTD: jax.Array, context: AttentionContext, beam: Any
    ) -> Iterator[None]:
        self.current = self._stack_place(name, x_BTD, context, beam)
        if name == 'encoder':
            self._source_mask_BS = context.valid_BT
        try:
            yield
        finally:
            self.current = None

    def _stack_place(self, name, x_BTD, context, beam) -> Where:
        where = self.of_rows(x_BTD, context.positions_BT, context.valid_BT)
        if name == 'encoder':
            return where
        shape = x_BTD.shape[:2]
        if beam is not None:
            step_BT = jnp.broadcast_to(beam.step, shape)
            return where._replace(
                step_BT=step_BT, index_BT=step_BT + self._source_length
            )
        if self._target is None:
            return where._replace(step_BT=jnp.full(shape, -1))
        step_BT = self._target.positions_BT
        source_length = shape[1] - step_BT.shape[1]
        padding = [(0, 0), (source_length, 0)]
        return where._replace(step_BT=jnp.pad(step_BT, padding, constant_values=-1))
