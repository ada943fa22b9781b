"""What all searches share: the loop over positions, and the state that goes through it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flaxformer_lite.shapes import Path

Cache = Any
Step = Callable[[jax.Array, Cache, Path], tuple[jax.Array, Cache]]
Grow = Callable[[Cache, int, int], Cache]

# Far below any sum of log-probabilities, and finite, so that differences stay numbers.
NEVER = -1.0e9
# A cache begins with room for so many tokens and grows by this factor: short translations, the most
# of them, don't pay for the room that the longest one may need.
ROOM, GROWTH = 32, 4


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
      step: int32 scalar.
      live_BNL, live_score_BN: tokens so far, and their log-probability.
      done_BML, done_score_BM: the best that have ended.
      parent_BN, visible_BNS: as `Path`, before the step's own slots are shown.
    """

    step: jax.Array
    live_BNL: jax.Array
    live_score_BN: jax.Array
    done_BML: jax.Array
    done_score_BM: jax.Array
    parent_BN: jax.Array
    visible_BNS: jax.Array
    cache: Cache


def search(
    open_B: Callable[[State], jax.Array],
    extend: Callable[[State, jax.Array], State],
    step: Step,
    grow: Grow,
    cache: Cache,
    *,
    batch: int,
    beams: int,
    bos: int,
    length: int,
) -> State:
    """Steps until no sentence is open: each a step of the model, then `extend(state, logits)`."""

    def going(state: State) -> jax.Array:
        room = state.visible_BNS.shape[-1] // beams
        return (state.step < room) & open_B(state).any()

    def body(state: State) -> State:
        i = state.step
        visible_BNS = take(state.visible_BNS, state.parent_BN)
        own_NN = jnp.broadcast_to(jnp.eye(beams, dtype=bool), (batch, beams, beams))
        visible_BNS = jax.lax.dynamic_update_slice_in_dim(visible_BNS, own_NN, i * beams, 2)
        last_BN = jnp.where(i == 0, bos, state.live_BNL[:, :, jnp.maximum(i - 1, 0)])
        path = Path(i, state.parent_BN, visible_BNS)
        logits_BNV, cache = step(last_BN, state.cache, path)
        state = state._replace(visible_BNS=visible_BNS, cache=cache)
        return extend(state, logits_BNV.astype(jnp.float32))._replace(step=i + 1)

    tokens_BNL = jnp.zeros((batch, beams, length), jnp.int32)
    never_BN = jnp.full((batch, beams), NEVER)
    state = State(
        step=jnp.int32(0),
        live_BNL=tokens_BNL,
        # All hypotheses begin alike, so only the first may be continued.
        live_score_BN=never_BN.at[:, 0].set(0.0),
        done_BML=tokens_BNL,
        done_score_BM=never_BN,
        parent_BN=jnp.zeros((batch, beams), jnp.int32),
        visible_BNS=jnp.zeros((batch, beams, 0), bool),
        cache=cache,
    )
    for room in _rooms(length):
        added = room * beams - state.visible_BNS.shape[-1]
        state = state._replace(
            visible_BNS=jnp.pad(state.visible_BNS, ((0, 0), (0, 0), (0, added))),
            cache=grow(state.cache, beams, room),
        )
        state = jax.lax.while_loop(going, body, state)
    return state


def allowed(step: jax.Array, limits_B: jax.Array, bos: int, eos: int, vocab: int) -> jax.Array:
    """Which tokens may come next: no padding and no start token, and at the limit only the end."""
    token_V = jnp.arange(vocab)
    last_B1 = (step + 1 >= limits_B)[:, None]
    return jnp.where(last_B1, token_V == eos, (token_V != 0) & (token_V != bos))


def take(x_BN: jax.Array, index_BM: jax.Array) -> jax.Array:
    """Hypotheses by index: x[b, index[b, m]]."""
    return jax.vmap(lambda x_N, index_M: x_N[index_M])(x_BN, index_BM)


def _rooms(length: int) -> list[int]:
    """How many tokens a cache has room for, stage after stage: 32, 128, …, length."""
    rooms = [ROOM]
    while rooms[-1] * GROWTH < length:
        rooms.append(rooms[-1] * GROWTH)
    return [*(room for room in rooms if room < length), length]
