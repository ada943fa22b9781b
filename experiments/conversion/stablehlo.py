"""StableHLO by `jax.export`: programs that run without this project's code.

`encode.stablehlo` reads sources; `step.stablehlo` makes the logits of the next token.
Both take the parameters, which stand beside them in `parameters.npz`, so that they are
on disk once. What goes from step to step is a list of arrays.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from experiments import storage
from experiments.checkpoints.digest import leaves_by_path
from experiments.conversion import normalization
from experiments.conversion.trained import Trained
from experiments.errors import UserError
from flaxformer_lite.jax_compat import InconclusiveDimensionOperation
from flaxformer_lite.kv_cache import BeamState
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.train_step import init_variables

PLATFORMS = ('cpu', 'cuda', 'tpu')
# Of a source, its end token counted: a length of 1 broadcasts, and others do not.
SHORTEST = 2
_MANIFEST = {
    'encode': '(parameters, source int32[b, s]) -> state',
    'step': '(parameters, token int32[b], position int32[], state) -> (logits, state)',
    'source': f'each row ends with the end token; then padding; s >= {SHORTEST}',
    'platforms': PLATFORMS,
}


def write(trained: Trained, folder: Path) -> None:
    """Writes programs, parameters, tokenizer and a manifest.

    Raises:
      UserError: a part of the model needs lengths that are known.
    """
    model = trained.model
    # How many more tokens than its source a target may have.
    extra_length = trained.config.evaluation.extra_length
    try:
        for name, (function, shapes) in _functions(model, extra_length).items():
            exporter = export.export(jax.jit(function), platforms=PLATFORMS)
            program = exporter(*shapes).serialize()
            (folder / f'{name}.stablehlo').write_bytes(program)
    except (InconclusiveDimensionOperation, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            '--to=stablehlo: a part of this model needs lengths that are known, as '
            f'blockwise attention and a mixture of experts do: {reason}'
        ) from None
    arrays: dict[str, Any] = jax.device_get(leaves_by_path(trained.variables))
    np.savez(folder / 'parameters.npz', **arrays)
    tokenizer = normalization.self_normalizing(trained.tokenizer.model)
    (folder / 'tokenizer.model').write_bytes(tokenizer)
    manifest = _MANIFEST | {
        'vocab_size': model.vocab_size,
        'special_tokens': dataclasses.asdict(model.special_tokens),
        # Positions from 0; the caches have room for so many more than the source has.
        'extra_length': extra_length,
        'max_length': model.max_length,
    }
    storage.write_json(folder / 'manifest.json', manifest)


def _functions(
    model: Model, extra_length: int
) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """What is exported, by name: each function, and the shapes that it takes."""
    variables = jax.eval_shape(lambda: init_variables(model, jax.random.key(0)))
    parameters = leaves_by_path(variables)
    tree = jax.tree.structure(variables)
    batch, length = export.symbolic_shape('b, s', constraints=[f's >= {SHORTEST}'])
    room = length + extra_length

    def restore(given):
        return jax.tree.unflatten(tree, [given[name] for name in parameters])

    def start(parameters, source_BS):
        state: Any = model.apply(restore(parameters), source_BS, method='prefill')
        return state.allocate(1, room)

    def encode(parameters, source_BS):
        return jax.tree.leaves(start(parameters, source_BS))

    def step(parameters, token_B, position, leaves):
        visible_T = jnp.arange(room) <= position
        beam = BeamState(
            position,
            jnp.zeros((batch, 1), jnp.int32),
            jnp.broadcast_to(visible_T[None, None], (batch, 1, room)),
        )
        state = jax.tree.unflatten(state_tree, leaves)
        logits_B1V, state = model.apply(
            restore(parameters), token_B[:, None], state, beam, method='decode_step'
        )
        return logits_B1V[:, 0], jax.tree.leaves(state)

    source_BS = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    token_B = jax.ShapeDtypeStruct((batch,), jnp.int32)
    position = jax.ShapeDtypeStruct((), jnp.int32)
    state = jax.eval_shape(start, parameters, source_BS)
    leaves, state_tree = jax.tree.flatten(state)
    of_step = (parameters, token_B, position, leaves)
    return {'encode': (encode, (parameters, source_BS)), 'step': (step, of_step)}
