"""Tests that the models of the shipped configs are those of classes."""

import importlib
import pkgutil

import jax.numpy as jnp

import configs
import flaxformer_lite as fl
from flaxformer_lite.config import builder

SMALL = dict(d_model=128, num_layers=3, residual=fl.residual.PreNorm())
BIG = dict(d_model=1024, num_heads=16, d_ff=4096, dropout=0.3)
SHIPPED = {
    'g2p': SMALL | dict(num_heads=4, d_ff=512),
    'inflection': SMALL | dict(num_heads=4, d_ff=512),
    'made': SMALL | dict(d_ff=256),
    'scan': SMALL | dict(d_ff=256),
    'wmt_base': {},
    'wmt_base_bf16': dict(dtype=jnp.bfloat16),
    'wmt_big': BIG,
    'wmt_big_bf16': BIG | dict(dtype=jnp.bfloat16),
    'wmt_small': SMALL | dict(num_layers=4, num_heads=4, d_ff=512),
    'wmt_tiny': SMALL | dict(d_model=64, num_layers=2, num_heads=4, d_ff=256),
}


def test_models_of_classes_equal_those_of_the_shipped_configs():
    modules = pkgutil.iter_modules(configs.__path__)
    assert {x.name for x in modules if not x.ispkg} == SHIPPED.keys()
    for name, fields in SHIPPED.items():
        config = importlib.import_module(f'configs.{name}').get_config()
        assert fl.Transformer(vocab_size=8000, **fields) == builder.build(
            config.model, 8000
        )
