"""Makes the goldens beside it with PyTorch: its Transformer's layers with weights of
their own.

    python tests/goldens/make.py

Each file holds, under `/`-separated names: `params`, laid out as ours are; `batch`; the
`logits`; the mean label-smoothed `loss` over the labels that are not padding; its
`gradients`; and the parameters after a step of `adam`. Parameters have our names, but
for `attention` and `merge`, which `test_transformer.GOLDEN_NAMES` translates. Computed
in float64, stored in float32. PyTorch is needed to make them and not to test with them.
"""

import math
from pathlib import Path

import numpy as np
import torch
from torch import nn

D, HEADS, FF, LAYERS, VOCAB = 8, 2, 16, 2, 13
SOURCE = [[4, 5, 6, 7, 1], [10, 4, 1, 0, 0], [9, 1, 0, 0, 0]]
LABELS = [[8, 9, 3, 1, 0, 0], [11, 5, 12, 6, 7, 1], [4, 1, 0, 0, 0, 0]]
INPUTS = [[2, 8, 9, 3, 0, 0], [2, 11, 5, 12, 6, 7], [2, 4, 0, 0, 0, 0]]


class Model(nn.Module):
    """Embeddings × √d + sinusoids, PyTorch's stacks, and the product with the output
    matrix."""

    def __init__(self, pre_norm: bool, activation: str, tied: bool, full: bool):
        super().__init__()
        normed = pre_norm or full
        settings = dict(
            d_model=D,
            nhead=HEADS,
            dim_feedforward=FF,
            dropout=0.0,
            activation=activation,
            layer_norm_eps=1e-6,
            batch_first=True,
            norm_first=pre_norm,
        )
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**settings),
            LAYERS,
            norm=nn.LayerNorm(D, eps=1e-6) if normed else None,
            enable_nested_tensor=False,
        )
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(**settings),
            LAYERS,
            norm=nn.LayerNorm(D, eps=1e-6) if normed else None,
        )
        self.target = nn.Parameter(torch.empty(VOCAB, D))
        self.source = self.target if tied else nn.Parameter(torch.empty(VOCAB, D))
        self.output = self.target if tied else nn.Parameter(torch.empty(VOCAB, D))
        self.output_bias = nn.Parameter(torch.empty(VOCAB))
        for name, p in self.named_parameters():
            if is_no_papers(name) and not full:
                nn.init.zeros_(p)
            else:
                nn.init.normal_(p, std=0.4)

    def forward(self, source, inputs):
        padding = source == 0
        later = torch.triu(
            torch.ones(inputs.shape[1], inputs.shape[1], dtype=torch.bool), 1
        )
        memory = self.encoder(embed(self.source, source), src_key_padding_mask=padding)
        y = self.decoder(
            embed(self.target, inputs),
            memory,
            tgt_mask=later,
            memory_key_padding_mask=padding,
        )
        return y @ self.output.T + self.output_bias


def is_no_papers(name: str) -> bool:
    """Attention and logits are without biases in the paper."""
    return ('attn' in name or 'output' in name) and name.endswith('bias')


def embed(table, tokens):
    position = torch.arange(tokens.shape[1])[:, None]
    angle = position / 10000 ** (torch.arange(0, D, 2) / D)
    sinusoids = torch.stack([torch.sin(angle), torch.cos(angle)], -1).flatten(1)
    return table[tokens] * math.sqrt(D) + sinusoids


def ours(model, value, full: bool) -> dict[str, np.ndarray]:
    """`value(parameter)` for each of PyTorch's parameters, under our names and in our
    layout."""
    named = {
        k: value(p) for k, p in model.named_parameters() if full or not is_no_papers(k)
    }
    out = {'embedding': named.pop('target')}
    names = {'source': 'source_embedding', 'output': 'output'}
    names['output_bias'] = 'output_bias'
    for name, our_name in names.items():
        if name in named:
            out[our_name] = named.pop(name)
    for name, x in named.items():
        stack, *rest = name.split('.')
        if rest[0] == 'norm':
            kind = {'weight': 'scale', 'bias': 'bias'}[rest[1]]
            out[f'{stack}/final/norm/{kind}'] = x
            continue
        layer = f'{stack}/layer_{rest[1]}'
        part, kind = rest[2], rest[-1]
        if part in ('self_attn', 'multihead_attn'):
            attention = 'attention' if part == 'self_attn' else 'cross_attention'
            for path, array in of_attention(kind, x).items():
                out[f'{layer}/{attention}/{path}'] = array
        elif part.startswith('linear'):
            side = {'linear1': 'up', 'linear2': 'down'}[part]
            weight = kind == 'weight'
            out[f'{layer}/feed_forward/{side}/{"kernel" if weight else "bias"}'] = x.T
        else:
            kind = {'weight': 'scale', 'bias': 'bias'}[kind]
            out[f'{layer}/residual_{part.removeprefix("norm")}/norm/{kind}'] = x
    return out


def of_attention(kind: str, x: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays that one of an attention's parameters is under our names."""
    if kind == 'bias':
        return {'merge/bias': x}
    if kind == 'weight':
        return {'merge/kernel': x.T.reshape(HEADS, -1, D)}
    parts = zip(('query', 'key', 'value'), np.split(x, 3), strict=True)
    if kind == 'in_proj_bias':
        return {f'{role}/bias': b.reshape(HEADS, -1) for role, b in parts}
    return {f'{role}/kernel': w.T.reshape(D, HEADS, -1) for role, w in parts}


def numpy(x: torch.Tensor) -> np.ndarray:
    return x.detach().numpy().copy()


def make(name: str, seed: int, full: bool = False, **settings) -> None:
    torch.manual_seed(seed)
    model = Model(full=full, **settings)
    source, inputs, labels = map(torch.tensor, (SOURCE, INPUTS, LABELS))
    params = ours(model, numpy, full)
    logits = model(source, inputs)
    loss = nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=0, label_smoothing=0.1
    )
    loss.backward()
    trained = [p for n, p in model.named_parameters() if full or not is_no_papers(n)]
    gradients = ours(model, lambda p: numpy(p.grad), full)
    torch.optim.Adam(trained, lr=1e-3, betas=(0.9, 0.98), eps=1e-9).step()
    adam = ours(model, numpy, full)

    golden = {'logits': numpy(logits), 'loss': numpy(loss)}
    for group, tree in (('params', params), ('gradients', gradients), ('adam', adam)):
        golden |= {f'{group}/{path}': x for path, x in tree.items()}
    golden = {k: x.astype(np.float32) for k, x in golden.items()}
    golden |= {f'batch/{k}': x for k, x in batch().items()}
    np.savez_compressed(Path(__file__).with_name(f'{name}.npz'), **golden)
    print(f'{name}: {len(golden)} arrays, loss {loss.item():.6f}')


def batch() -> dict[str, np.ndarray]:
    source, inputs, labels = (np.int32(x) for x in (SOURCE, INPUTS, LABELS))

    def positions(x):
        return np.tile(np.arange(x.shape[1], dtype=np.int32), (len(x), 1))

    return dict(
        source=source,
        inputs=inputs,
        labels=labels,
        source_segments=np.int32(source != 0),
        target_segments=np.int32(inputs != 0),
        source_positions=positions(source),
        target_positions=positions(inputs),
    )


if __name__ == '__main__':
    torch.set_default_dtype(torch.float64)
    make('post_norm', seed=0, pre_norm=False, activation='relu', tied=True)
    make('pre_norm', seed=1, pre_norm=True, activation='gelu', tied=False)
    # As PyTorch's layers are by default, and with a linear layer to the logits.
    make('pytorch', seed=2, full=True, pre_norm=False, activation='relu', tied=False)
