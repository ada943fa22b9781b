"""Trains one model here and with `torch.nn.Transformer`, and compares the losses.

    python -m benchmarks.two_frameworks

Both start from the same parameters, read the same batches and train in float64 without
dropout. The PyTorch side has its own embeddings, positions, schedule, clipping and
loss, written from the paper.
"""

import argparse
import math
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
import torch.nn.functional as F

jax.config.update('jax_enable_x64', True)
# The library computes sums in float32. This is the only name by which it asks for it.
jnp.float32 = jnp.float64

import flaxformer_lite as fl  # noqa: E402

VOCAB_SIZE = 50
D_MODEL = 32
HEADS = 4
D_FF = 64
LAYERS = 2
EPSILON = 1e-6  # of LayerNorm
ROWS = 16
LENGTH = 8
SMOOTHING = 0.1
# The paper's rate of 0.03 at this width would make training chaotic, so that rounding
# errors grow until they are as large as the loss.
FACTOR = 0.1
WARM_UP = 30
BETAS = (0.9, 0.98)
CLIP = 1.0


class Setting(NamedTuple):
    """Choices that the trainings on both sides share."""

    norm: str
    tied: bool
    smoothing: float
    clip: float


SETTINGS = [
    Setting(norm, tied, smoothing, clip)
    for norm in ('post', 'pre')
    for tied in (True, False)
    for smoothing, clip in ((0.0, math.inf), (SMOOTHING, CLIP))
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--steps', type=int, default=100)
    steps = parser.parse_args().steps
    print('| norm | embeddings | smoothing | clip | first loss | last | difference |')
    print('|---|---|---|---|---|---|---|')
    for setting in SETTINGS:
        ours, theirs = train(setting, steps)
        embeddings = 'tied' if setting.tied else 'separate'
        clip = setting.clip if setting.clip < math.inf else 'no'
        difference = max(abs(x - y) for x, y in zip(ours, theirs, strict=True))
        print(
            f'| {setting.norm} | {embeddings} | {setting.smoothing} | {clip} '
            f'| {ours[0]:.6f} | {ours[-1]:.6f} | {difference:.1e} |',
            flush=True,
        )


def train(setting: Setting, steps: int) -> tuple[list[float], list[float]]:
    """Returns the mean loss per token of each step, ours and PyTorch's."""
    residual = (
        fl.residual.PreNorm() if setting.norm == 'pre' else fl.residual.PostNorm()
    )
    model = fl.Transformer(
        vocab_size=VOCAB_SIZE,
        d_model=D_MODEL,
        num_layers=LAYERS,
        num_heads=HEADS,
        d_ff=D_FF,
        dropout=0.0,
        residual=residual,
        norm=fl.norms.LayerNorm(epsilon=EPSILON),
        projections=fl.Projections(bias=True),
        embeddings=fl.Embeddings(tie='all' if setting.tied else 'none'),
    )
    schedule = fl.schedules.Noam(d_model=D_MODEL, warmup=WARM_UP, factor=FACTOR)
    optimizer = optax.adam(schedule, *BETAS, eps=1e-9)
    if setting.clip < math.inf:
        optimizer = optax.chain(optax.clip_by_global_norm(setting.clip), optimizer)
    loss = fl.losses.CrossEntropy(label_smoothing=setting.smoothing)
    state = fl.init_state(model, optimizer, jax.random.key(0))
    step = jax.jit(fl.make_train_step(model, optimizer, loss=loss))
    peer = Peer(setting, jax.device_get(state.params))
    ours, theirs = [], []
    for sources, targets in batches(steps):
        batch = fl.make_batch(sources, targets, model=model)
        state, metrics = step(state, batch, jax.random.key(1))
        ours.append(float(metrics.loss))
        theirs.append(peer.step(sources, targets))
    return ours, theirs


def batches(steps: int) -> Iterator[tuple[list[list[int]], list[list[int]]]]:
    """Returns pairs of sentences and their reverse, which end with token 1."""
    rng = random.Random(0)
    for _ in range(steps):
        # The first has the greatest length, so that all batches have the same shape.
        lengths = [LENGTH, *(rng.randint(2, LENGTH) for _ in range(ROWS - 1))]
        texts = [[rng.randrange(3, VOCAB_SIZE) for _ in range(n)] for n in lengths]
        yield [[*x, 1] for x in texts], [[*x[::-1], 1] for x in texts]


class Peer:
    """`torch.nn.Transformer` between embeddings and logits, with Adam."""

    def __init__(self, setting: Setting, params: Any):
        self.setting = setting
        self.transformer = torch.nn.Transformer(
            d_model=D_MODEL,
            nhead=HEADS,
            num_encoder_layers=LAYERS,
            num_decoder_layers=LAYERS,
            dim_feedforward=D_FF,
            dropout=0.0,
            layer_norm_eps=EPSILON,
            batch_first=True,
            norm_first=setting.norm == 'pre',
            dtype=torch.float64,
        )
        if setting.norm == 'post':  # the paper has no norm after the last layer
            self.transformer.encoder.norm = None
            self.transformer.decoder.norm = None
        self.target = self.source = self.output = parameter(params['embedding'])
        if not setting.tied:
            self.source = parameter(params['source_embedding'])
            self.output = parameter(params['output'])
        for name, tensor in self.transformer.named_parameters():
            tensor.data = torch.tensor(given(params, name))
        tables = {id(x): x for x in (self.target, self.source, self.output)}
        self.parameters = [*self.transformer.parameters(), *tables.values()]
        self.adam = torch.optim.Adam(self.parameters, betas=BETAS, eps=1e-9)
        self.steps = 0

    def step(self, sources: list[list[int]], targets: list[list[int]]) -> float:
        """Trains one step and returns the loss before it."""
        self.steps += 1
        labels_BT = padded(targets)
        inputs_BT = padded([[2, *x[:-1]] for x in targets])
        logits_BTV = self.logits(padded(sources), inputs_BT)
        total = F.cross_entropy(
            logits_BTV.flatten(0, 1),
            labels_BT.flatten(),
            ignore_index=0,
            label_smoothing=self.setting.smoothing,
            reduction='sum',
        )
        loss = total / (labels_BT != 0).sum()
        self.adam.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(float((x.grad**2).sum()) for x in self.parameters))
        for x in self.parameters:
            x.grad *= min(1.0, self.setting.clip / norm)
        for group in self.adam.param_groups:
            group['lr'] = learning_rate(self.steps)
        self.adam.step()
        return float(loss.detach())

    def logits(self, source_BS: torch.Tensor, inputs_BT: torch.Tensor) -> torch.Tensor:
        length = inputs_BT.shape[1]
        is_later_TT = torch.ones(length, length, dtype=torch.bool).triu(1)
        hidden_BTD = self.transformer(
            embed(self.source, source_BS),
            embed(self.target, inputs_BT),
            tgt_mask=is_later_TT,
            src_key_padding_mask=source_BS == 0,
            memory_key_padding_mask=source_BS == 0,
        )
        return hidden_BTD @ self.output.T


def parameter(array: Any) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(np.asarray(array)))


def given(params: Any, name: str) -> np.ndarray:
    """Returns our values of a parameter of `torch.nn.Transformer`."""
    stack, *path, kind = name.split('.')
    is_weight = kind.endswith('weight')
    if path == ['norm']:
        return params[stack]['final']['norm']['scale' if is_weight else 'bias']
    _, number, part, *_ = path
    layer = params[stack][f'layer_{number}']
    if part.startswith('norm'):
        norm = layer[f'residual_{part[-1]}']['norm']
        return norm['scale' if is_weight else 'bias']
    if part.startswith('linear'):
        matrix = layer['feed_forward']['up' if part == 'linear1' else 'down']
        return matrix['kernel'].T if is_weight else matrix['bias']
    attention = layer['self_attention' if part == 'self_attn' else 'cross_attention']
    if path[-1] == 'out_proj':
        projection = attention['out_proj']
        kernel_HUD = projection['kernel']
        weight = kernel_HUD.reshape(-1, D_MODEL).T
        return weight if is_weight else projection['bias']
    projections = [attention[x] for x in ('query', 'key', 'value')]
    if is_weight:
        return np.concatenate([x['kernel'].reshape(D_MODEL, -1).T for x in projections])
    return np.concatenate([x['bias'].ravel() for x in projections])


def padded(rows: list[list[int]]) -> torch.Tensor:
    tensors = [torch.tensor(row) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)


def embed(table_VD: torch.Tensor, tokens_BT: torch.Tensor) -> torch.Tensor:
    """√d_model E[token] + PE, with sines at even and cosines at odd dimensions."""
    position_T1 = torch.arange(tokens_BT.shape[1], dtype=torch.float64)[:, None]
    even_D = torch.arange(0, D_MODEL, 2, dtype=torch.float64)
    angle_TD = position_T1 / 10_000 ** (even_D / D_MODEL)
    encoding_TD = torch.stack([angle_TD.sin(), angle_TD.cos()], -1).flatten(1)
    return table_VD[tokens_BT] * D_MODEL**0.5 + encoding_TD


def learning_rate(step: int) -> float:
    """Equation 3 of the paper, times FACTOR; steps count from 1."""
    return FACTOR * D_MODEL**-0.5 * min(step**-0.5, step * WARM_UP**-1.5)


if __name__ == '__main__':
    main()
