"""Tests of the ledger against closed forms, built models and compiled steps."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import tiny

from configs import wmt_base
from experiments import describe
from experiments.config import load
from experiments.config.schema import BatchConfig, ExperimentConfig
from experiments.costs import flops
from experiments.costs import ledger as costs_ledger
from experiments.errors import UserError
from flaxformer_lite import remat
from flaxformer_lite.config import builder, variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.sizes import Sizes
from flaxformer_lite.training.loss import loss_and_grads
from flaxformer_lite.training.train_step import init_variables

# All sizes differ, so a formula that confuses two of them fails.
V, D, N, H, K, U, F, L = 11, 16, 2, 2, 3, 5, 24, 8


def ledger(config):
    return costs_ledger.ledger(load.from_config_dict(config))


def small(**model):
    config = wmt_base.get_config()
    load.fill(config)
    config.tokenizer = f'sentencepiece(vocab_size={V})'
    config.batch.tokens, config.batch.max_length = 6 * L, L
    config.model.update(
        dict(d_model=D, num_layers=N, num_heads=H, d_k=K, d_v=U, d_ff=F) | model
    )
    return config


def with_total(parts):
    return {part: n for part, n in parts.items() if n} | {'total': sum(parts.values())}


@pytest.mark.ci
@pytest.mark.parametrize(
    'model',
    [
        {},
        {'residual': 'pre_norm', 'norm': 'rms', 'tie': 'decoder'},
        {'feed_forward': 'swiglu', 'tie': 'none', 'dtype': 'bfloat16'},
        {'positions': 'learned(max_length=9)', 'dropout': 0.0, 'feed_forward': 'gelu'},
        {'attention_bias': True, 'output_bias': True, 'norm_embeddings': True},
    ],
    ids=str,
)
def test_parameters_and_flops_match_the_closed_form(model):
    config = small(**model)
    m = config.model
    matrices = 3 if m.feed_forward == 'swiglu' else 2
    biases = 0 if m.feed_forward == 'swiglu' else F + D
    attention = D * H * (2 * K + U) + H * U * D
    attention_biases = H * (2 * K + U) + D if m.attention_bias else 0
    norm = D if m.norm == 'rms' else 2 * D
    positions = 9 * D if 'learned' in m.positions else 0
    final = norm if m.residual == 'pre_norm' else 0
    final += norm if m.norm_embeddings else 0
    costs = ledger(config)
    assert costs['parameters'] == with_total(
        {
            'embeddings': V * D * (1 if m.tie == 'all' else 2),
            'encoder positions': positions,
            'encoder self-attention': N * (attention + attention_biases),
            'encoder feed-forward': N * (matrices * D * F + biases),
            'encoder norms': N * 2 * norm + final,
            'decoder positions': positions,
            'decoder self-attention': N * (attention + attention_biases),
            'decoder cross-attention': N * (attention + attention_biases),
            'decoder feed-forward': N * (matrices * D * F + biases),
            'decoder norms': N * 3 * norm + final,
            'logits': (V * D if m.tie == 'none' else 0) + (V if m.output_bias else 0),
        }
    )
    # Two operations per weight, and per key and value; backward takes twice that.
    attend = 3 * 2 * (attention + L * H * (K + U))
    assert costs['flops_per_token'] == with_total(
        {
            'encoder self-attention': N * attend,
            'encoder feed-forward': N * 3 * 2 * matrices * D * F,
            'decoder self-attention': N * attend,
            'decoder cross-attention': N * attend,
            'decoder feed-forward': N * 3 * 2 * matrices * D * F,
            'logits': 3 * 2 * V * D,
        }
    )


@pytest.mark.parametrize(('multiple', 'rows'), [(1, 97), (8, 96)])
def test_number_of_rows_is_that_of_batches(multiple, rows):
    config = wmt_base.get_config()
    load.fill(config)
    config.batch.rows_multiple = multiple

    def shape():
        settings = load.from_config_dict(config)
        return costs_ledger.batch_shape(settings.batch, settings.train.accumulate)

    assert shape() == (rows, config.batch.max_length)
    config.batch.tokens = 7 * config.batch.max_length
    config.batch.rows_multiple = 8
    with pytest.raises(UserError, match='batch.rows_multiple=8'):
        shape()


def test_parameters_and_bytes_match_a_built_model():
    config = small(residual='pre_norm', positions='learned', tie='none', num_layers=1)
    model = builder.build(config.model, V)
    shapes = jax.eval_shape(lambda: init_variables(model, jax.random.key(0)))['params']
    arrays = jax.tree.leaves(shapes)
    costs = ledger(config)
    assert costs['parameters']['total'] == sum(x.size for x in arrays)
    size = sum(x.size * x.dtype.itemsize for x in arrays)
    assert costs['bytes']['parameters'] == costs['bytes']['gradients'] == size
    # Adam has two moments; Adam and the schedule count updates.
    assert costs['bytes']['optimizer'] == 2 * size + 8


def floats(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def flops_of(function, *args):
    return flops.flops(jax.make_jaxpr(function)(*args).jaxpr).total()


def test_flops_of_products_in_loops_branches_and_checkpoints():
    a, b = floats(2, 3, 5), floats(2, 5, 7)
    once = 2 * (2 * 3 * 7) * 5

    def product(a, b):
        return jnp.einsum('bij,bjk->bik', a, b)

    def scan(a, b):
        return jax.lax.scan(
            lambda x, _: (x + product(a, b), None), jnp.zeros((2, 3, 7)), length=4
        )

    def cond(a, b):
        def half():
            return jnp.concatenate(
                [product(a[:1], b[:1]), a[:1, :, :1] * jnp.ones((1, 3, 7))]
            )

        return jax.lax.cond(a[0, 0, 0] > 0, half, lambda: product(a, b))

    def while_loop(a, b):
        return jax.lax.while_loop(
            lambda x: x.sum() < 9, lambda x: x + product(a, b), product(a, b)
        )

    assert flops_of(product, a, b) == flops_of(jax.jit(product), a, b) == once
    assert flops_of(scan, a, b) == 4 * once
    assert flops_of(cond, a, b) == once
    assert flops_of(jax.checkpoint(product), a, b) == once
    with pytest.raises(ValueError, match='while'):
        flops_of(while_loop, a, b)


def test_mixture_costs_its_chosen_experts_and_the_padding_of_their_blocks():
    x = floats(1, 768, D)

    def cost(text):
        network = variants.make('feed_forward', text, sizes=Sizes(d_model=D, d_ff=F))
        params = jax.eval_shape(network.init, jax.random.key(0), x)['params']
        run = functools.partial(network.apply, mutable=['losses', 'metrics'])
        return flops_of(run, {'params': params}, x)

    # Per token, two of eight experts and the gate.
    chosen = 768 * 2 * (2 * 2 * D * F + D * 8)
    assert cost('mixture(experts=8, capacity=1.0)') == chosen
    assert chosen < cost('mixture(experts=8)') < 2 * chosen


@pytest.mark.slow
def test_command_needs_no_device_and_prints_json():
    command = [sys.executable, '-m', 'experiments.describe', '--json']
    # Neither compiling nor a single array is possible without a platform.
    result = subprocess.run(
        [*command, '--config=wmt_big_bf16', '--config.model.attention=flash'],
        env=os.environ | {'JAX_PLATFORMS': 'none'},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    costs = json.loads(result.stdout)
    assert costs['parameters']['total'] == 214_171_648
    assert costs['batch'] == {'rows': 96, 'length': 256, 'tokens': 24_576}


@pytest.mark.ci
@pytest.mark.ci
def test_flash_attention_for_a_gpu_is_counted_on_a_cpu():
    sizes = dict(dtype='bfloat16', d_k=8, d_v=8)
    flash = ledger(small(attention='flash', **sizes))
    softmax = ledger(small(**sizes))
    assert flash['parameters'] == softmax['parameters']
    again = N * 2 * L * H * 8
    more = {'encoder self-attention': again, 'decoder self-attention': again}
    more |= {'decoder cross-attention': again, 'total': 3 * again}
    assert flash['flops_per_token'] == {
        part: n + more.get(part, 0) for part, n in softmax['flops_per_token'].items()
    }


def test_device_has_its_share_of_split_matrices():
    """Matrices split over 2 × 2 devices, embeddings over 2; the rest is replicated."""
    config = small(num_heads=4, num_layers=1)
    config.mesh.data, config.mesh.fsdp, config.mesh.tensor = 3, 2, 2
    costs = ledger(config)
    device, whole = costs['device'], costs['bytes']
    assert device.keys() == {'devices', 'parameters', 'gradients', 'optimizer'}
    attention = D * 4 * (2 * K + U) + 4 * U * D
    matrices = 3 * attention + 2 * (2 * D * F)
    embedding = V * D  # 11 pieces can't be split over two devices
    vectors = whole['parameters'] / 4 - matrices - embedding
    assert device['devices'] == 12
    assert device['parameters'] == 4 * (matrices / 4 + embedding / 2 + vectors)
    assert device['gradients'] == device['parameters']
    # Adam has two moments; counts of steps are replicated.
    counts = whole['optimizer'] - 2 * whole['parameters']
    assert device['optimizer'] == 2 * device['parameters'] + counts


@pytest.mark.slow
def test_memory_of_a_step_grows_with_its_rows_as_planned_by_xla():
    def memory(rows):
        config = small(num_heads=4, num_layers=1)
        config.batch.tokens = rows * L
        config.mesh.fsdp = 2
        return describe.step_memory(load.from_config_dict(config))

    few, many = memory(8), memory(64)
    # Each row has four arrays of int32, with their segments and positions.
    assert 0 < many['arrays'] - few['arrays'] <= (64 - 8) / 4 * L * 4 * 8
    assert many['working'] > few['working'] > 0


def costs_of(**fields):
    """Returns the parameters and FLOPs of a tiny model."""
    model = ModelConfig().with_values(tiny.dotted(tiny.SIZES | fields))
    batch = BatchConfig(tokens=64, max_length=16)
    costs = costs_ledger.ledger(ExperimentConfig(model=model, batch=batch))
    return costs['parameters'], costs['flops_per_token']


@pytest.mark.ci
@pytest.mark.ci
def test_each_layer_is_counted_by_its_own_component():
    (both, flops), *single = (
        costs_of(feed_forward=name) for name in ('[relu, swiglu]', 'relu', 'swiglu')
    )
    for part in ('encoder feed-forward', 'decoder feed-forward'):
        assert both[part] == sum(x[part] for x, _ in single) / 2
        assert flops[part] == sum(x[part] for _, x in single) / 2


@pytest.mark.ci
def test_shared_layers_have_the_parameters_of_one_and_the_flops_of_all():
    only = {'architecture': 'decoder_only'}  # half as much to trace
    parameters, flops = costs_of(num_layers=2, share_layers=1, **only)
    assert parameters == costs_of(num_layers=1, **only)[0]
    assert flops == costs_of(num_layers=2, **only)[1]


@pytest.mark.ci
@pytest.mark.ci
def test_recomputed_flops_shrink_with_the_remat_policy():
    ledgers = {}
    for choice in (remat.NONE, remat.BLOCKS, *remat.POLICIES):
        config = small(num_layers=1, architecture='decoder_only')
        config.train.remat = choice
        ledgers[choice] = ledger(config)
    recomputed = {
        choice: x['recomputed']['flops_per_token'] for choice, x in ledgers.items()
    }
    _, no_batched_products, products, everything = remat.POLICIES
    assert recomputed['blocks'] > recomputed[no_batched_products] > 0
    assert recomputed[products] == recomputed[everything] == recomputed['none'] == 0
    flops = [x['flops_per_token'] for x in ledgers.values()]
    assert all(x == flops[0] for x in flops)


@pytest.mark.ci
@pytest.mark.ci
def test_scanned_layers_cost_as_many_times_as_they_run():
    batch = tiny.batch([[pair] for pair in tiny.PAIRS])

    def cost(num_layers):
        model = tiny.model(scan_layers=True, num_layers=num_layers, layer_drop=0.1)
        variables = jax.eval_shape(lambda: init_variables(model, jax.random.key(0)))
        step = functools.partial(loss_and_grads, model, dropout_key=jax.random.key(1))
        return flops_of(step, variables, batch)

    assert cost(6) > 2 * cost(2)
