"""The search loop that strategies share."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flaxformer_lite.decoding.processors.base import Processor
from flaxformer_lite.decoding.result import (
    DecodeResult,
    best,
    concatenate,
    first,
    write_rows,
)
from flaxformer_lite.kv_cache import BeamState, gather_beams

# The cache's initial capacity in tokens, and its growth factor. Most translations are
# short and don't pay for the capacity that the longest may need.
FIRST_CAPACITY = 32
GROWTH = 4
# When at most these fractions of the sentences are unfinished, the others leave the
# batch. A third fraction doesn't speed up decoding and makes the program 25% larger.
# Batches below SMALLEST_BATCH rows aren't worth shrinking.
SHRINK_AT = (1 / 2, 1 / 6)
SMALLEST_BATCH = 8


class DecodeInputs(NamedTuple):
    """Inputs of a search.

    Attributes:
      decode_step: The model's step, as `flaxformer_lite.decoding` defines it.
      state: Initial decoding state, without space for generated tokens.
      max_len_B: int32, maximum length of each result, including the end token; 0 for
        padding rows. At its limit, a sentence gets the end token.
      length: Static maximum length of all results.
      keys_B: PRNG key per row, for strategies that sample. One key per row, so that
        samples don't depend on the other rows of a batch.
    """

    decode_step: Callable[[jax.Array, Any, BeamState], tuple[jax.Array, Any]]
    state: Any
    max_len_B: jax.Array
    bos: int
    eos: int
    length: int
    padding: int = 0
    processors: tuple[Processor, ...] = ()
    keys_B: jax.Array | None = None


class SearchState(NamedTuple):
    """Loop state of a search, for the sentences still in the batch.

    Attributes:
      beam: The next step. Its own slots are not visible yet.
      row_B: int32, index of each sentence in the whole batch.
      live: Unfinished hypotheses, scored by log-probability.
    """

    beam: BeamState
    row_B: jax.Array
    max_len_B: jax.Array
    keys_B: Any
    live: DecodeResult
    finished: DecodeResult
    model: Any


class SearchTrace(NamedTuple):
    """A search, step by step.

    Attributes:
      steps: int32 scalar, number of steps taken.
      live: Unfinished hypotheses after each step, scored by log-probability, with a
        leading axis of `length` steps. Zeros after the last step.
      finished: Best finished hypotheses after each step, scored as in the result.
    """

    result: DecodeResult
    steps: jax.Array
    live: DecodeResult
    finished: DecodeResult

    def hypotheses(self, eos: int, row: int = 0) -> dict[tuple[int, ...], float]:
        """Returns every hypothesis kept at any step of a sentence: tokens → score.

        They form the search tree, whose root is (). Scores are log-probabilities, or as
        in the result for hypotheses that end in `eos`.
        """
        found: dict[tuple[int, ...], float] = {(): 0.0}
        for step in range(int(self.steps)):
            for tokens, log_p in self.live.of_row(eos, step, row):
                found[tokens[: step + 1]] = log_p
            for tokens, score in self.finished.of_row(eos, step, row):
                found.setdefault(tokens, score)
        return found


# (state, logits_BNV, total_BNV) → index_BM: M of a sentence's N · V continuations,
# ordered by group, best first within each group.
Choose = Callable[[SearchState, jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Search:
    """Decodes until every sentence is finished, keeping the best candidates per step.

    Attributes:
      choose: Returns M ≥ N candidates, as `Strategy.choose`.
      score: Log-probability and length → score of a result, as `Strategy.score`.
      beams: N, hypotheses per sentence over all groups.
      n_best: Number of results per sentence that must be final. The search of a
        sentence stops when no live hypothesis can displace one of them.
    """

    inputs: DecodeInputs
    choose: Choose
    score: Callable[[jax.Array, jax.Array], jax.Array]
    beams: int = 1
    n_best: int = 1
    groups: int = 1

    def __call__(self) -> DecodeResult:
        state = self._first_state()
        batch = len(self.inputs.max_len_B)
        smaller = [int(batch * share) for share in SHRINK_AT]
        smaller = [rows for rows in smaller if rows >= SMALLEST_BATCH]

        # All sentences, with increasing capacity, until few are unfinished.
        stops = [*smaller, 0]
        for capacity in _capacities(self.inputs.length):
            state = self._allocate(state, capacity)
            state = self._run(state, capacity, stops[0])
        result = state.finished
        # Only the unfinished sentences, in ever smaller batches.
        for rows, stop in itertools.pairwise(stops):
            state = self._keep_unfinished(state, rows)
            state = self._run(state, self.inputs.length, stop)
            result = write_rows(result, state.row_B, state.finished)
        if self.groups > 1:
            result = best(self.beams, result)
        return result

    def trace(self) -> SearchTrace:
        """Runs the search and records each step.

        Finished sentences stay in the batch, so use it for small batches.
        """
        state = self._first_state()
        steps = self.inputs.length
        seen = jax.tree.map(
            lambda x: jnp.zeros((steps, *x.shape), x.dtype),
            (state.live, state.finished),
        )

        def should_continue(capacity, carried):
            return self._should_continue(carried[0], capacity, 0)

        def advance(carried):
            state, seen = carried
            after = self._advance(state)
            seen = jax.tree.map(
                lambda all_steps, x: all_steps.at[state.beam.step].set(x),
                seen,
                (after.live, after.finished),
            )
            return after, seen

        for capacity in _capacities(steps):
            state = self._allocate(state, capacity)
            has_capacity = functools.partial(should_continue, capacity)
            state, seen = jax.lax.while_loop(has_capacity, advance, (state, seen))
        result = state.finished
        if self.groups > 1:
            result = best(self.beams, result)
        return SearchTrace(result, state.beam.step, *seen)

    def _first_state(self) -> SearchState:
        inputs = self.inputs
        batch = len(inputs.max_len_B)
        shape = batch, self.beams
        empty = DecodeResult(
            tokens=jnp.full((*shape, inputs.length), inputs.padding, jnp.int32),
            scores=jnp.full(shape, -jnp.inf),
            exists=jnp.zeros(shape, bool),
        )
        # All hypotheses start equal, so only the first of each group exists.
        first_ones = slice(0, None, self._width) if self.groups > 1 else 0
        live = DecodeResult(
            tokens=empty.tokens,
            scores=empty.scores.at[:, first_ones].set(0.0),
            exists=empty.exists.at[:, first_ones].set(True),
        )
        beam = BeamState(
            step=jnp.int32(0),
            parent_BN=jnp.zeros(shape, jnp.int32),
            visible_BNS=jnp.zeros((*shape, 0), bool),
        )
        return SearchState(
            beam=beam,
            row_B=jnp.arange(batch, dtype=jnp.int32),
            max_len_B=jnp.minimum(inputs.max_len_B, inputs.length),
            keys_B=inputs.keys_B,
            live=live,
            finished=empty,
            model=inputs.state,
        )

    def _allocate(self, state: SearchState, capacity: int) -> SearchState:
        slots = state.beam.visible_BNS.shape[2]
        padding = [(0, 0), (0, 0), (0, capacity * self.beams - slots)]
        visible_BNS = jnp.pad(state.beam.visible_BNS, padding)
        return state._replace(
            beam=state.beam.replace(visible_BNS=visible_BNS),
            model=state.model.allocate(self.beams, capacity),
        )

    def _run(self, state: SearchState, capacity: int, stop: int) -> SearchState:
        """Steps until at most `stop` sentences are unfinished or the cache is full."""

        def should_continue(state):
            return self._should_continue(state, capacity, stop)

        return jax.lax.while_loop(should_continue, self._advance, state)

    def _should_continue(
        self, state: SearchState, capacity: int, stop: int
    ) -> jax.Array:
        has_capacity = state.beam.step < capacity
        return has_capacity & (self._is_unfinished(state).sum() > stop)

    def _keep_unfinished(self, state: SearchState, rows: int) -> SearchState:
        stay_B = jnp.argsort(~self._is_unfinished(state))[:rows]

        def select(x):
            if x.ndim == 0:
                return x
            return x[stay_B]

        return jax.tree.map(select, state)

    def _is_unfinished(self, state: SearchState) -> jax.Array:
        """Returns whether a live hypothesis can enter its group's best, bool B."""
        live = self._by_group(state.live)
        finished = self._by_group(state.finished)
        max_len_B = state.max_len_B
        if self.groups > 1:
            max_len_B = jnp.repeat(max_len_B, self.groups)
        # Log-probabilities never rise, so this is the best score a live hypothesis can
        # reach.
        lengths_1L = jnp.arange(1, self.inputs.length + 1)[None]
        scores_BL = self.score(live.scores.max(-1)[:, None], lengths_1L)
        is_longer_1L = lengths_1L > state.beam.step
        possible_BL = is_longer_1L & (lengths_1L <= max_len_B[:, None])
        reachable_B = scores_BL.max(-1, where=possible_BL, initial=-jnp.inf)
        last = min(self.n_best, self._width) - 1
        is_beaten_B = reachable_B <= finished.scores[:, last]
        is_decided_B = finished.exists[:, last] & is_beaten_B
        is_below_limit_B = state.beam.step < max_len_B
        is_live_B = live.exists.any(-1)
        is_open_B = is_below_limit_B & ~is_decided_B & is_live_B
        if self.groups > 1:
            is_open_B = is_open_B.reshape(-1, self.groups).any(-1)
        return is_open_B

    def _advance(self, state: SearchState) -> SearchState:
        beam, model, logits_BNV = self._run_model(state)
        candidates, parent_BM = self._candidates(state, logits_BNV)
        length = beam.step + 1
        ended_BM = candidates.tokens[:, :, beam.step] == self.inputs.eos

        unfinished_B1 = self._is_unfinished(state)[:, None]
        results = candidates._replace(
            scores=self.score(candidates.scores, length)
        ).where(ended_BM & unfinished_B1)
        results = concatenate(self._by_group(state.finished), self._by_group(results))
        finished = best(self._width, results)
        continuing = self._by_group(candidates.where(~ended_BM))
        live, kept_BN = first(self._width, continuing)

        parent_BN = jnp.take_along_axis(self._by_group(parent_BM), kept_BN, 1)
        return state._replace(
            beam=beam.replace(step=length, parent_BN=self._whole(parent_BN)),
            live=self._whole(live),
            finished=self._whole(finished),
            model=model,
        )

    @property
    def _width(self) -> int:
        return self.beams // self.groups

    def _by_group(self, arrays: Any) -> Any:
        """Reshapes arrays BM to (B · groups, M / groups)."""

        def divided(x_BM):
            _, candidates, *others = x_BM.shape
            return x_BM.reshape(-1, candidates // self.groups, *others)

        return jax.tree.map(divided, arrays)

    def _whole(self, arrays: Any) -> Any:

        def joined(x_BM):
            _, candidates, *others = x_BM.shape
            return x_BM.reshape(-1, candidates * self.groups, *others)

        return jax.tree.map(joined, arrays)

    def _run_model(self, state: SearchState) -> tuple[BeamState, Any, jax.Array]:
        beam = state.beam
        batch, beams = beam.parent_BN.shape
        visible_BNS = beam.visible_BNS
        if beams > 1:
            visible_BNS = gather_beams(visible_BNS, beam.parent_BN)
        own_NN = jnp.eye(beams, dtype=bool)
        own_BNN = jnp.broadcast_to(own_NN, (batch, beams, beams))
        visible_BNS = jax.lax.dynamic_update_slice_in_dim(
            visible_BNS, own_BNN, beam.step * beams, 2
        )
        beam = beam.replace(visible_BNS=visible_BNS)
        last_BN = state.live.tokens[:, :, beam.step - 1]
        last_BN = jnp.where(beam.step > 0, last_BN, self.inputs.bos)
        logits_BNV, model = self.inputs.decode_step(last_BN, state.model, beam)
        return beam, model, logits_BNV.astype(jnp.float32)

    def _candidates(
        self, state: SearchState, logits_BNV: jax.Array
    ) -> tuple[DecodeResult, jax.Array]:
        live = state.live
        batch, _, vocab_size = logits_BNV.shape
        allowed_BV = self._may_follow(state, jnp.arange(vocab_size)[None])
        allowed_B1V = allowed_BV[:, None]
        log_z_BN = jax.nn.logsumexp(logits_BNV, -1)
        offset_BN = live.scores - log_z_BN
        logits_BNV = self._process_logits(state, logits_BNV)
        logits_BNV = jnp.where(allowed_B1V, logits_BNV, -jnp.inf)

        def total(logits, offset, before):
            if not self.inputs.processors:
                return logits + offset
            # `_is_unfinished` requires log-probabilities that never rise.
            return jnp.minimum(logits + offset, before)

        total_BNV = total(logits_BNV, offset_BN[..., None], live.scores[..., None])
        total_BNV = jnp.where(allowed_B1V, total_BNV, -jnp.inf)
        index_BM = self.choose(state, logits_BNV, total_BNV)
        parent_BM = index_BM // vocab_size
        token_BM = index_BM % vocab_size
        # Not from `total_BNV`: XLA drops it from greedy search, which doesn't read it.
        logit_BM = jnp.take_along_axis(logits_BNV.reshape(batch, -1), index_BM, 1)
        offset_BM = gather_beams(offset_BN, parent_BM)
        scores_BM = total(logit_BM, offset_BM, gather_beams(live.scores, parent_BM))
        # Drop candidates with a nonexistent parent, a disallowed token or zero
        # probability.
        exists_BM = gather_beams(live.exists, parent_BM)
        exists_BM &= jnp.isfinite(scores_BM)
        exists_BM &= self._may_follow(state, token_BM)
        tokens_BML = gather_beams(live.tokens, parent_BM)
        tokens_BML = tokens_BML.at[:, :, state.beam.step].set(token_BM)
        return DecodeResult(tokens_BML, scores_BM, exists_BM), parent_BM

    def _process_logits(self, state: SearchState, logits_BNV: jax.Array) -> jax.Array:
        """Applies the processors, except to sentences at their limit."""
        if not self.inputs.processors:
            return logits_BNV
        found_BNV = logits_BNV
        tokens_BNL = state.live.tokens
        step = state.beam.step
        for processor in self.inputs.processors:
            found_BNV = processor(found_BNV, tokens_BNL, step, self.inputs.eos)
        is_last_B11 = self._is_last(state)[:, None, None]
        return jnp.where(is_last_B11, logits_BNV, found_BNV)

    def _is_last(self, state: SearchState) -> jax.Array:
        return state.beam.step + 1 >= state.max_len_B

    def _may_follow(self, state: SearchState, token_BM: jax.Array) -> jax.Array:
        """Allows no padding or start token; at the limit, only the end token."""
        is_last_B1 = self._is_last(state)[:, None]
        is_end = token_BM == self.inputs.eos
        is_text = (token_BM != self.inputs.padding) & (token_BM != self.inputs.bos)
        return jnp.where(is_last_B1, is_end, is_text | is_end)


def _capacities(length: int) -> list[int]:
    capacities = []
    capacity = FIRST_CAPACITY
    while capacity < length:
        capacities.append(capacity)
        capacity *= GROWTH
    return [*capacities, length]


def length_penalty(length: jax.Array | int, alpha: float) -> jax.Array | float:
    """Computes ((5 + length) / 6)^α (Wu et al. 2016, eq. 14), end token included.

    Examples:
      >>> length_penalty(1, alpha=0.6), length_penalty(7, alpha=1.0)
      (1.0, 2.0)
    """
    return ((5.0 + length) / 6.0) ** alpha
