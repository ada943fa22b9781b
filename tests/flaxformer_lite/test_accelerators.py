"""Tests of programs lowered for accelerators, which are not compiled or run here."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest
import tiny

from flaxformer_lite.decoding import BeamSearch
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
# The types of the operands and of the result.
PRODUCT = re.compile(
    r'dot_general .* : \(tensor<(?:\d+x)*(\w+)>, tensor<(?:\d+x)*(\w+)>\) -> '
    r'tensor<(?:\d+x)*(\w+)>'
)
CUDNN = re.compile(r'custom_call @(__cudnn\$\w+)\(.* : \((.*)\) -> ')


@functools.cache
def traced_step(**overrides):
    """Returns a traced training step, and the shapes of its state."""
    model, optimizer = tiny.model(**SIZES | overrides), tiny.adam(1e-3)
    state = jax.eval_shape(functools.partial(init_state, model, optimizer), KEY)
    batch = dict.fromkeys(BATCH_ARRAYS, jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32))
    step = jax.jit(make_train_step(model, optimizer), donate_argnums=0)
    return step.trace(state, batch, KEY), state


def lowered(traced, platform):
    return traced.lower(lowering_platforms=(platform,)).as_text()


def check_products(program, *results):
    """Checks for bfloat16 operands. XLA sums in float32 for any result dtype."""
    found = PRODUCT.findall(program)
    assert len(found) == program.count('dot_general ') > 10
    assert set(found) == {('bf16', 'bf16', result) for result in results or ['f32']}


@pytest.mark.ci
@pytest.mark.parametrize('platform', ['cuda', 'tpu'])
def test_training_step_multiplies_bfloat16_and_donates_its_state(platform):
    traced, state = traced_step()
    program = lowered(traced, platform)
    # On CUDA, the product rounds the gradients of inputs.
    check_products(program, *(['f32', 'bf16'] if platform == 'cuda' else ['f32']))
    assert 'callback' not in program
    assert program.count('tf.aliasing_output') == len(jax.tree.leaves(state))


def test_search_multiplies_bfloat16_and_makes_no_callback():
    model = tiny.model(**SIZES)
    variables = jax.eval_shape(functools.partial(init_variables, model), KEY)
    source_BS = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)
    search = functools.partial(generate, model, strategy=BeamSearch(beams=3))
    traced = jax.jit(search).trace(variables, source_BS)
    for platform in ('cuda', 'tpu'):
        program = lowered(traced, platform)
        check_products(program)
        assert 'callback' not in program


@pytest.fixture
def cudnn(monkeypatch):
    """Lets `flash` be traced as on a machine with cuDNN."""
    monkeypatch.setattr(
        'jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version', lambda: 91_500
    )


def weights_in(program):
    """Returns arrays with an entry per head, query and key; lengths may be padded by
    one.
    """
    return re.findall(rf'tensor<{ROWS}x{HEADS}x[78]x[78]x(?:f32|bf16)>', program)


@pytest.mark.ci
def test_flash_calls_cudnn_and_stores_no_weights(cudnn):
    traced, _ = traced_step(attention='flash')
    program = lowered(traced, 'cuda')
    calls = CUDNN.findall(program)
    names = [name for name, _ in calls]
    assert names.count('__cudnn$fmhaScaleBiasSoftmax') == 3
    assert names.count('__cudnn$fmhaScaleBiasSoftmaxBackward') == 3
    mask = f'tensor<{ROWS}x1x{LENGTH + 1}x{LENGTH + 1}xbf16>'
    assert all(mask in operands for _, operands in calls)
    assert not weights_in(program)
    assert weights_in(lowered(traced_step()[0], 'cuda'))  # those of softmax
    # Other sizes, so that no trace is shared.
    traced, _ = traced_step(attention='flash', d_k=32, d_v=32)
    for platform in ('cpu', 'tpu'):
        with pytest.raises(ValueError, match='Flash runs on NVIDIA GPUs with cuDNN'):
            lowered(traced, platform)


def test_flash_on_an_unsupported_gpu_is_rejected_when_lowered(monkeypatch):
    attend = jax.nn.dot_product_attention

    def reject_cudnn(*arrays, implementation=None, **options):
        if implementation == 'cudnn':
            raise NotImplementedError('Require at least Ampere arch to run.')
        return attend(*arrays, **options)

    monkeypatch.setattr(jax.nn, 'dot_product_attention', reject_cudnn)
    monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
    # Other sizes, so that no trace is shared.
    traced, _ = traced_step(attention='flash', d_k=24, d_v=24)
    with pytest.raises(ValueError, match='Flash does not run on this GPU: Require at'):
        lowered(traced, 'cuda')
    with pytest.raises(ValueError, match='Flash runs on NVIDIA GPUs with cuDNN'):
        lowered(traced, 'cpu')


def test_blockwise_stores_no_weights_on_a_tpu():
    traced, _ = traced_step(attention='blockwise(block=4)')
    program = lowered(traced, 'tpu')
    check_products(program)
    assert not weights_in(program)
