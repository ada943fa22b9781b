"""What all searches share: the loop over positions, and the state that goes through it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flaxformer_lite.shapes import Path, take

Cache = Any
Step = Callable[[jax.Array, Cache, Path], tuple[jax.Array, Cache]]
Grow = Callable[[Cache, int, int], Cache]

# Far below any sum of log-probabilities, and finite, so that differences stay numbers.
NEVER = -1.0e9
# A cache begins with room for so many tokens and grows by this factor: short translations, the most
# of them, don't pay for the room that the longest one may need.
ROOM, GROWTH = 32, 4
# Once no more than these shares of a batch's sentences are open, the others leave it: the longest
# don't keep those that have ended in the machine. Batches below so many rows aren't worth it.
SHARES, FEWEST = (2, 4, 8), 8


class Task(NamedTuple):
    """What is decoded.

    Attributes:
      step: the model's.
      grow: makes room in its cache.
      cache: what decoding begins with, without room.
      limits_B: int32, the most tokens of each row, its end token counted; no more than `length`. A
        row at its limit ends there, with the end token; 0 for a row that is padding.
      bos, eos: the start and the end token.
      length: the size of the buffers, static.
    """

    step: Step
    grow: Grow
    cache: Cache
    limits_B: jax.Array
    bos: int
    eos: int
    length: int


class Decoded(NamedTuple):
    """The results of each sentence, best first.

    Attributes:
      tokens_BNL: int32, with their end token, then padding.
      scores_BN: float32, log-probability in nats; beam search's is over the length penalty. Below
        NEVER / 2 where there is no such result.
    """

    tokens_BNL: jax.Array
    scores_BN: jax.Array


class State(NamedTuple):
    """What goes from step to step. Live hypotheses have no end token yet, finished ones have.

    Attributes:
      step: int32 scalar; all others begin with the axis of sentences.
      limits_B: int32, the most tokens of each.
      live_BNL, live_score_BN: tokens so far, and their log-probability.
      done_BML, done_score_BM: the best that have ended.
      parent_BN, visible_BNS: as `Path`, before the step's own slots are shown.
      keys_B: random keys, where something is drawn.
      cache: the step's.
    """

    step: jax.Array
    limits_B: jax.Array
    live_BNL: jax.Array
    live_score_BN: jax.Array
    done_BML: jax.Array
    done_score_BM: jax.Array
    parent_BN: jax.Array
    visible_BNS: jax.Array
    keys_B: Any
    cache: Cache


def search(
    task: Task,
    is_open: Callable[[State], jax.Array],
    extend: Callable[[State, jax.Array], State],
    beams: int = 1,
    keys_B: Any = None,
) -> Decoded:
    """Steps until no sentence `is_open`: each a step of the model, then `extend(state, logits)`."""
    batch = len(task.limits_B)
    tokens_BNL = jnp.zeros((batch, beams, task.length), jnp.int32)
    never_BN = jnp.full((batch, beams), NEVER)
    state = State(
        step=jnp.int32(0),
        limits_B=jnp.minimum(task.limits_B, task.length),
        live_BNL=tokens_BNL,
        # All hypotheses begin alike, so only the first may be continued.
        live_score_BN=never_BN.at[:, 0].set(0.0),
        done_BML=tokens_BNL,
        done_score_BM=never_BN,
        parent_BN=jnp.zeros((batch, beams), jnp.int32),
        visible_BNS=jnp.zeros((batch, beams, 0), bool),
        keys_B=keys_B,
        cache=task.cache,
    )
    fewer = [batch // share for share in SHARES if batch // share >= FEWEST]
    stops = [*fewer, 0]

    def run(state: State, enough: int) -> State:
        """Steps until no more than so many sentences are open, or there is no room."""

        def going(state: State) -> jax.Array:
            room = state.visible_BNS.shape[-1] // beams
            return (state.step < room) & (is_open(state).sum() > enough)

        return jax.lax.while_loop(going, lambda state: _advance(state, task, extend), state)

    for room in _rooms(task.length):
        state = run(_grown(state, task, room), stops[0])
    left, index_B = [], jnp.arange(batch, dtype=jnp.int32)
    for rows, enough in zip(fewer, stops[1:], strict=True):
        open_first_B = jnp.argsort(~is_open(state))
        stay_B, leave_B = open_first_B[:rows], open_first_B[rows:]
        left.append((index_B[leave_B], state.done_BML[leave_B], state.done_score_BM[leave_B]))
        index_B, state = index_B[stay_B], run(_only(state, stay_B), enough)
    left.append((index_B, state.done_BML, state.done_score_BM))
    index_B, tokens_BML, score_BM = (jnp.concatenate(x) for x in zip(*left, strict=True))
    return Decoded(*(x[jnp.argsort(index_B)] for x in (tokens_BML, score_BM)))


def _only(state: State, index_B: jax.Array) -> State:
    """The state of some of the sentences."""
    some = jax.tree.map(lambda x: x[index_B], state._replace(step=()))
    return some._replace(step=state.step)


def _grown(state: State, task: Task, room: int) -> State:
    beams, slots = state.visible_BNS.shape[1:]
    visible_BNS = jnp.pad(state.visible_BNS, [(0, 0), (0, 0), (0, room * beams - slots)])
    return state._replace(visible_BNS=visible_BNS, cache=task.grow(state.cache, beams, room))


def _advance(state: State, task: Task, extend: Callable) -> State:
    i, (batch, beams) = state.step, state.parent_BN.shape
    visible_BNS = state.visible_BNS
    if beams > 1:
        visible_BNS = take(visible_BNS, state.parent_BN)
    own_NN = jnp.broadcast_to(jnp.eye(beams, dtype=bool), (batch, beams, beams))
    visible_BNS = jax.lax.dynamic_update_slice_in_dim(visible_BNS, own_NN, i * beams, 2)
    last_BN = jnp.where(i == 0, task.bos, state.live_BNL[:, :, jnp.maximum(i - 1, 0)])
    logits_BNV, cache = task.step(last_BN, state.cache, Path(i, state.parent_BN, visible_BNS))
    state = state._replace(visible_BNS=visible_BNS, cache=cache)
    return extend(state, logits_BNV.astype(jnp.float32))._replace(step=i + 1)


def _rooms(length: int) -> list[int]:
    """How many tokens a cache has room for, stage after stage: 32, 128, …, length."""
    rooms = [ROOM]
    while rooms[-1] * GROWTH < length:
        rooms.append(rooms[-1] * GROWTH)
    return [*(room for room in rooms if room < length), length]
