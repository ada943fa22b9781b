"""Hugging Face's Marian: our architecture in PyTorch, with our parameters."""

import os
import re
from collections.abc import Mapping

import numpy as np
import torch
from transformers import MarianConfig, MarianMTModel

from experiments.data.tokenizers.base import BOS, EOS, PAD

POSITIONS = 1024
LAYER = re.compile(r'(encoder|decoder)/layer_(\d+)/(\w+)/(\w+)/(\w+)')
MAPS = {
    ('self_attention', 'query'): 'self_attn.q_proj',
    ('self_attention', 'key'): 'self_attn.k_proj',
    ('self_attention', 'value'): 'self_attn.v_proj',
    ('self_attention', 'out_proj'): 'self_attn.out_proj',
    ('cross_attention', 'query'): 'encoder_attn.q_proj',
    ('cross_attention', 'key'): 'encoder_attn.k_proj',
    ('cross_attention', 'value'): 'encoder_attn.v_proj',
    ('cross_attention', 'out_proj'): 'encoder_attn.out_proj',
    ('feed_forward', 'up'): 'fc1',
    ('feed_forward', 'down'): 'fc2',
}
NORMS = {
    'encoder': {'residual_1': 'self_attn', 'residual_2': 'final'},
    'decoder': {
        'residual_1': 'self_attn',
        'residual_2': 'encoder_attn',
        'residual_3': 'final',
    },
}


def make(
    vocab_size: int,
    *,
    d_model: int,
    d_ff: int,
    num_layers: int,
    num_heads: int,
    dropout: float,
) -> MarianMTModel:
    torch.set_num_threads(os.cpu_count())
    torch.manual_seed(0)
    return MarianMTModel(
        MarianConfig(
            vocab_size=vocab_size,
            d_model=d_model,
            encoder_layers=num_layers,
            decoder_layers=num_layers,
            encoder_ffn_dim=d_ff,
            decoder_ffn_dim=d_ff,
            encoder_attention_heads=num_heads,
            decoder_attention_heads=num_heads,
            dropout=dropout,
            activation_function='relu',
            init_std=d_model**-0.5,
            scale_embedding=True,
            max_position_embeddings=POSITIONS,
            pad_token_id=PAD,
            eos_token_id=EOS,
            bos_token_id=BOS,
            decoder_start_token_id=BOS,
            forced_eos_token_id=None,
            attn_implementation='sdpa',
        )
    )


def load(model: MarianMTModel, params: Mapping[str, np.ndarray]) -> None:
    """Loads our parameters, so that the model computes the same as ours.

    Args:
      params: By path, `encoder/layer_0/self_attention/query/kernel`. The model must be
        post-norm with ReLU, layer norm, sinusoids and one embedding matrix.
    """
    state = {
        name: torch.zeros_like(value) for name, value in model.state_dict().items()
    }
    # Our model has no biases in attention and logits, so those stay zero.
    missing = {
        name for name in state if not re.search(r'(_proj|logits)[._]bias$', name)
    }
    new = {'model.shared.weight': params['embedding']}
    for side in ('encoder', 'decoder'):
        new[f'model.{side}.embed_tokens.weight'] = params['embedding']
        new[f'model.{side}.embed_positions.weight'] = _sinusoids(
            params['embedding'].shape[1]
        )
    new['lm_head.weight'] = params['embedding']
    for path, value in params.items():
        if path != 'embedding':
            name, value = _named(path, value)
            new[name] = value
    if missing != new.keys():
        raise KeyError(f'not the same parameters: {sorted(missing ^ new.keys())}')
    for name, value in new.items():
        state[name] = torch.from_numpy(np.ascontiguousarray(value, np.float32))
    model.load_state_dict(state)
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-6


def _named(path: str, value: np.ndarray) -> tuple[str, np.ndarray]:
    """Returns Marian's name and array; PyTorch's matrices are outputs × inputs."""
    stack, layer, part, inner, leaf = LAYER.fullmatch(path).groups()
    place = f'model.{stack}.layers.{layer}'
    if part in NORMS[stack]:
        leaf = {'scale': 'weight', 'bias': 'bias'}[leaf]
        return f'{place}.{NORMS[stack][part]}_layer_norm.{leaf}', value
    name = f'{place}.{MAPS[part, inner]}'
    if leaf == 'bias':
        return f'{name}.bias', value
    inputs = np.prod(value.shape[:-1]) if inner == 'out_proj' else value.shape[0]
    return f'{name}.weight', value.reshape(inputs, -1).T


def _sinusoids(d_model: int) -> np.ndarray:
    """Returns the paper's alternating sines and cosines; Marian has all sines first."""
    angle = np.arange(POSITIONS)[:, None] / 10000 ** (
        np.arange(0, d_model, 2) / d_model
    )
    return np.stack([np.sin(angle), np.cos(angle)], -1).reshape(POSITIONS, d_model)
