"""Tests of the parameters that adapters leave fixed, in `base/` of a run."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.checkpoints import base
from experiments.checkpoints.checkpoints import Checkpoints
from experiments.errors import UserError


def test_adapters_are_restored_with_the_base_they_trained_with(tmp_path):
    params = {'kernel': jnp.ones(3), 'lora_a': jnp.zeros(3)}
    frozen = frozenset({'kernel'})
    base.save(tmp_path, params, frozen, 'runs/first')
    saved = Checkpoints(tmp_path / 'checkpoints')
    adapters = {'lora_a': params['lora_a']}
    saved.save(7, adapters, {'base': base.facts(tmp_path)})
    saved.wait()
    joined = base.join(saved, adapters, params, frozen)
    jax.tree.map(np.testing.assert_array_equal, joined, params)

    base.save(tmp_path, {'kernel': jnp.zeros(3)}, frozen, 'runs/first')
    with pytest.raises(UserError, match='/base differs from .* step 7 .* runs/first'):
        base.join(saved, adapters, params, frozen)
    shutil.rmtree(tmp_path / 'base')
    with pytest.raises(UserError, match='/base is missing or damaged: .* step 7'):
        base.join(saved, adapters, params, frozen)
