"""What all searches share: the loop over positions, and the state that goes through it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flaxformer_lite.shapes import Path, take

Cache = Any

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

    step: Callable[[jax.Array, Cache, Path], tuple[jax.Array, Cache]]
    grow: Callable[[Cache, int, int], Cache]
    cache: Cache
    limits_B: jax.Array
    bos: int
    eos: int
    length: int


class Decoded(NamedTuple):
    """The results of each sentence, best first.

    Attributes:
      tokens_BNL: int32, with their end token, then padding.
      scores_BN: float32, log-probability in nats; beam search's is over the length penalty. −inf
        where there is no such result.
      exists_BN: bool, False where there is no such result: fewer than N sentences are possible, a
        row is padding, or the model's logits are not numbers.
    """

    tokens_BNL: jax.Array
    scores_BN: jax.Array
    exists_BN: jax.Array


class State(NamedTuple):
    """What goes from step to step, of the sentences that are still in the batch.

    Attributes:
      path: the next step's, before its own slots are shown.
      row_B: int32, the row that each sentence has in the task.
      limits_B: int32, the most tokens of each.
      live, done: hypotheses that have not ended, by log-probability, and the best that have.
    """

    path: Path
    row_B: jax.Array
    limits_B: jax.Array
    live: Decoded
    done: Decoded
    cache: Cache


# (state, logits_BNV, total_BNV) → index_BM into all N V continuations of a sentence
Choose = Callable[[State, jax.Array, jax.Array], jax.Array]


def search(
    task: Task, choose: Choose, beams: int = 1, alpha: float = 0, best: int = 1
) -> Decoded:
    """Steps until no sentence is open; of what is chosen each time, the best go on or are results.

    Args:
      choose: M ≥ N continuations to consider, by the logits of the next token and by the
        log-probability of all tokens with it; both are −inf where it may not come.
      beams, alpha, best: as `beam`.
    """

    def is_open(state):
        # Log-probabilities only fall, so a live one can reach at most this.
        reach_B = state.live.scores_BN.max(-1) / length_penalty(state.limits_B, alpha)
        beaten_B = reach_B <= state.done.scores_BN[:, best - 1]
        wanted_B = ~(state.done.exists_BN[:, best - 1] & beaten_B)
        goes_on_B = state.path.step < state.limits_B
        return goes_on_B & wanted_B & state.live.exists_BN.any(-1)

    def advance(state):
        path, cache, logits_BNV = _fed(task, state)
        i, (batch, _, vocab) = path.step, logits_BNV.shape
        allowed_BV = _may_come(task, jnp.arange(vocab)[None], i, state.limits_B)
        allowed_B1V = allowed_BV[:, None]
        offset_BN = state.live.scores_BN - jax.nn.logsumexp(logits_BNV, -1)
        total_BNV = logits_BNV + offset_BN[..., None]
        total_BNV = jnp.where(allowed_B1V, total_BNV, -jnp.inf)
        index_BM = choose(
            state, jnp.where(allowed_B1V, logits_BNV, -jnp.inf), total_BNV
        )

        score_BM = jnp.take_along_axis(total_BNV.reshape(batch, -1), index_BM, 1)
        parent_BM, token_BM = index_BM // vocab, index_BM % vocab
        # A token that follows no hypothesis, may not come or has no probability continues nothing.
        exists_BM = take(state.live.exists_BN, parent_BM) & jnp.isfinite(score_BM)
        exists_BM &= _may_come(task, token_BM, i, state.limits_B)
        tokens_BML = take(state.live.tokens_BNL, parent_BM).at[:, :, i].set(token_BM)
        ended_BM = token_BM == task.eos
        final_BM = score_BM / length_penalty(i + 1, alpha)
        result_BM = exists_BM & ended_BM & is_open(state)[:, None]
        results = _where(result_BM, Decoded(tokens_BML, final_BM, exists_BM))
        done, _ = _best(beams, state.done, results)
        going_on = _where(~ended_BM, Decoded(tokens_BML, score_BM, exists_BM))
        live, kept_BN = _best(beams, going_on)
        path = path.replace(
            step=i + 1, parent_BN=jnp.take_along_axis(parent_BM, kept_BN, 1)
        )
        return state._replace(path=path, live=live, done=done, cache=cache)

    def run(state, room, enough):
        """Steps until no more than so many sentences are open, or there is no room."""

        def goes_on(state):
            return (state.path.step < room) & (is_open(state).sum() > enough)

        return jax.lax.while_loop(goes_on, advance, state)

    def open_first(state, rows):
        stay_B = jnp.argsort(~is_open(state))[:rows]
        return jax.tree.map(lambda x: x[stay_B] if x.ndim else x, state)

    state, batch, room = _start(task, beams), len(task.limits_B), 0
    stops = [*(batch // share for share in SHARES if batch // share >= FEWEST), 0]
    while room < task.length:
        room = min(room * GROWTH or ROOM, task.length)
        state = run(_grown(task, state, room), room, stops[0])
    results = state.done
    for rows, enough in zip(stops[:-1], stops[1:], strict=True):
        state = run(open_first(state, rows), room, enough)
        pairs = zip(results, state.done, strict=True)
        results = Decoded(*(x.at[state.row_B].set(some) for x, some in pairs))
    return results


def length_penalty(length: jax.Array | int, alpha: float) -> jax.Array | float:
    """((5 + length) / 6)^α (Wu et al. 2016, equation 14); the end token counts."""
    return ((5.0 + length) / 6.0) ** alpha


def _start(task: Task, beams: int) -> State:
    shape = len(task.limits_B), beams
    none = Decoded(
        jnp.zeros((*shape, task.length), jnp.int32),
        jnp.full(shape, -jnp.inf),
        jnp.zeros(shape, bool),
    )
    return State(
        path=Path(
            jnp.int32(0), jnp.zeros(shape, jnp.int32), jnp.zeros((*shape, 0), bool)
        ),
        row_B=jnp.arange(shape[0], dtype=jnp.int32),
        limits_B=jnp.minimum(task.limits_B, task.length),
        # All hypotheses begin alike, so only the first may be continued.
        live=none._replace(
            scores_BN=none.scores_BN.at[:, 0].set(0.0),
            exists_BN=none.exists_BN.at[:, 0].set(True),
        ),
        done=none,
        cache=task.cache,
    )


def _grown(task: Task, state: State, room: int) -> State:
    beams, slots = state.path.visible_BNS.shape[1:]
    visible_BNS = jnp.pad(
        state.path.visible_BNS, [(0, 0), (0, 0), (0, room * beams - slots)]
    )
    path = state.path.replace(visible_BNS=visible_BNS)
    return state._replace(path=path, cache=task.grow(state.cache, beams, room))


def _fed(task: Task, state: State) -> tuple[Path, Cache, jax.Array]:
    """A step of the model: its path, the cache after it and its logits in float32."""
    path, (batch, beams) = state.path, state.path.parent_BN.shape
    seen_BNS = take(path.visible_BNS, path.parent_BN) if beams > 1 else path.visible_BNS
    own_BNN = jnp.broadcast_to(jnp.eye(beams, dtype=bool), (batch, beams, beams))
    seen_BNS = jax.lax.dynamic_update_slice_in_dim(
        seen_BNS, own_BNN, path.step * beams, 2
    )
    last_BN = jnp.where(
        path.step > 0, state.live.tokens_BNL[:, :, path.step - 1], task.bos
    )
    path = path.replace(visible_BNS=seen_BNS)
    logits_BNV, cache = task.step(last_BN, state.cache, path)
    return path, cache, logits_BNV.astype(jnp.float32)


def _may_come(
    task: Task, token_BM: jax.Array, step: jax.Array, limits_B: jax.Array
) -> jax.Array:
    """Which tokens may come next: no padding, no start token, and at the limit only the end."""
    is_last_B1 = (step + 1 >= limits_B)[:, None]
    going_on_BM = (token_BM != 0) & (token_BM != task.bos)
    return jnp.where(is_last_B1, token_BM == task.eos, going_on_BM)


def _where(keep_BM: jax.Array, some: Decoded) -> Decoded:
    """Of some hypotheses those that are to be kept; the others exist no longer."""
    exists_BM = some.exists_BN & keep_BM
    scores_BM = jnp.where(exists_BM, some.scores_BN, -jnp.inf)
    return Decoded(some.tokens_BNL, scores_BM, exists_BM)


def _best(count: int, *some: Decoded) -> tuple[Decoded, jax.Array]:
    """The best of all that are given, and their places among them."""
    together = Decoded(*(jnp.concatenate(x, 1) for x in zip(*some, strict=True)))
    _, index_BN = jax.lax.top_k(together.scores_BN, count)
    return jax.tree.map(lambda x: take(x, index_BN), together), index_BN
