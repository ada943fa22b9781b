"""Tests of programs lowered for accelerators, which are not compiled or run here."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest
import tiny

from flaxformer_lite.generation import generate
from flaxformer_lite.training.batch import BATCH_ARRAYS
from flaxformer_lite.training.train_step import (
    init_state,
    init_variables,
    make_train_step,
)

ROWS, LENGTH, HEADS = 3, 7, 2
SIZES = dict(num_layers=1, num_heads=HEADS, d_k=16, d_v=16, dtype='bfloat16')
KEY = jax.eval_shape(lambda: jax.random.key(0))
every_accelerator = pytest.mark.parametrize('platform', ['cuda', 'tpu'])
# The types of the operands and of the result.
PRODUCT = re.compile(
    r'dot_general .* : \(tensor<(?:\d+x)*(\w+)>, tensor<(?:\d+x)*(\w+)>\) -> '
    r'tensor<(?:\d+x)*(\w+)>'
)
CUDNN = re.compile(r'custom_call @(__cudnn\$\w+)\(.* : \((.*)\) -> ')


def model(**overrides):
    return tiny.model(**SIZES | overrides)


@functools.cache
def traced_step(**overrides):
    made, optimizer = model(**overrides), tiny.adam(1e-3)
    state = jax.eval_shape(functools.partial(init_state, made, optimizer), KEY)
    batch = dict.fromkeys(BATCH_ARRAYS, jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32))
    step = jax.jit(make_train_step(made, optimizer), donate_argnums=0)
    return step.trace(state, batch, KEY), state


@functools.cache
def traced_search(**overrides):
    made = model(**overrides)
    variables = jax.eval_shape(functools.partial(init_variables, made), KEY)
    source_BS = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)
    search = functools.partial(generate, made, strategy='beam(beams=3)')
    return jax.jit(search).trace(variables, source_BS)


def lowered(traced, platform):
    return traced.lower(lowering_platforms=(platform,)).as_text()


def check_products(program, *results):
    """Checks for bfloat16 operands. XLA sums in float32 for any result dtype."""
    found = PRODUCT.findall(program)
    assert len(found) == program.count('dot_general ') > 10
    assert set(found) == {('bf16', 'bf16', result) for result in results or ['f32']}


@every_accelerator
def test_a_training_step_multiplies_bfloat16_and_gives_its_state_away(platform):
    traced, state = traced_step()
    program = lowered(traced, platform)
    # On CUDA, gradients of inputs are rounded by the product.
    check_products(program, *(['f32', 'bf16'] if platform == 'cuda' else ['f32']))
    assert 'callback' not in program
    assert program.count('tf.aliasing_output') == len(jax.tree.leaves(state))


@every_accelerator
def test_a_search_multiplies_bfloat16_and_asks_nothing_of_the_host(platform):
    program = lowered(traced_search(), platform)
    check_products(program)
    assert 'callback' not in program


@pytest.fixture
def cudnn(monkeypatch):
    """Lets `flash` be traced as on a machine with cuDNN."""
    monkeypatch.setattr(
        'jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version', lambda: 91_500
    )


def pairs(program):
    """Counts arrays with an entry per head, query and key; lengths may be padded by
    one.
    """
    return re.findall(rf'tensor<{ROWS}x{HEADS}x[78]x[78]x(?:f32|bf16)>', program)


def test_flash_is_cudnns_and_keeps_no_weights(cudnn):
    traced, _ = traced_step(attention='flash')
    program = lowered(traced, 'cuda')
    calls = CUDNN.findall(program)
    names = [name for name, _ in calls]
    assert names.count('__cudnn$fmhaScaleBiasSoftmax') == 3
    assert names.count('__cudnn$fmhaScaleBiasSoftmaxBackward') == 3
    mask = f'tensor<{ROWS}x1x{LENGTH + 1}x{LENGTH + 1}xbf16>'
    assert all(mask in operands for _, operands in calls)
    assert not pairs(program)
    assert pairs(lowered(traced_step()[0], 'cuda'))  # those of softmax


def test_flash_is_not_lowered_for_another_platform():
    traced, _ = traced_step(attention='flash', num_layers=2)
    for platform in ('cpu', 'tpu'):
        with pytest.raises(ValueError, match='flash runs on NVIDIA GPUs with cuDNN'):
            lowered(traced, platform)


def test_flash_is_planned_on_a_gpu_that_cannot_run_it(monkeypatch):
    attend = jax.nn.dot_product_attention

    def refuse(*arrays, implementation=None, **options):
        if implementation == 'cudnn':
            raise NotImplementedError('Require at least Ampere arch to run.')
        return attend(*arrays, **options)

    monkeypatch.setattr(jax.nn, 'dot_product_attention', refuse)
    monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
    # Other sizes than elsewhere, so that no trace is shared.
    traced, _ = traced_step(attention='flash', d_k=24, d_v=24)
    with pytest.raises(ValueError, match='flash does not run on this GPU: Require at'):
        lowered(traced, 'cuda')
    with pytest.raises(ValueError, match='flash runs on NVIDIA GPUs with cuDNN'):
        lowered(traced, 'cpu')


@pytest.mark.skipif(jax.default_backend() == 'gpu', reason='it runs on a GPU')
def test_flash_does_not_run_on_a_cpu():
    made = model(attention='flash')
    batch = jnp.ones((ROWS, LENGTH), jnp.int32)
    with pytest.raises(ValueError, match='flash .* Choose attention=blockwise'):
        made.init(jax.random.key(0), batch, batch)


def test_blockwise_keeps_no_weights_on_a_tpu():
    traced, _ = traced_step(attention='blockwise(block=4)')
    program = lowered(traced, 'tpu')
    check_products(program)
    assert not pairs(program)
