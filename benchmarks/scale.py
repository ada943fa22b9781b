"""Time, memory and price of training on N chips, by the formulas of docs/scale.md.

    python -m benchmarks.scale

Nothing is compiled or run. FLOPs and parameters are of `experiments.costs`; memory is
held against the compiled programs of benchmarks/README.md.
"""

import dataclasses
import functools
import itertools
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.mesh_memory import LENGTH, MODELS, REMAT, ROWS, VOCABULARY
from experiments.command_line import console
from experiments.config.schema import BatchConfig, ExperimentConfig
from experiments.costs.ledger import ledger
from flaxformer_lite.config.schema import ModelConfig

SIZES = {'wmt_base': dict(d_model=512, num_layers=6, num_heads=8)} | MODELS
BATCH = 2**19  # target tokens of a step, over all chips
TOKENS_A_PARAMETER = 20
CHIPS = (1, 8, 32, 256, 1024)
POWERS = [2**n for n in range(11)]
AT_ONCE = (1, 2, 4, 8, 16, 32, 64)  # rows; more are accumulated
PAYS = 0.8  # the share of a step in which a chip computes


class Chip(NamedTuple):
    """Published figures; bytes and FLOPs a second of a chip."""

    flops: float
    memory: float
    fast: float  # what it sends along one axis of a mesh, within a group
    group: int
    slow: float  # what it sends to other groups


UTILISATION = 0.5  # of `flops`, assumed
V5E = Chip(197e12, 16.9e9, 1e11, 256, 6.4e12 / 8 / 256)
H100 = Chip(990e12, 80e9, 4.5e11, 8, 5e10)
DOLLARS = 1.2  # an hour of a v5e, 2025-02-03


class Layout(NamedTuple):
    data: int
    fsdp: int
    tensor: int


class Work(NamedTuple):
    """What a device does at once: rows, their length, and `train.remat`."""

    remat: str
    rows: int = ROWS
    length: int = LENGTH


class Step(NamedTuple):
    """Seconds of a step on one chip: what it computes, and what it sends."""

    products: float
    gathers: float
    data: float
    fsdp: float
    tensor: float

    @property
    def seconds(self) -> float:
        """Gathers go on beside products; for sums a chip waits."""
        hidden = max(self.products, self.gathers)
        return hidden + self.data + self.fsdp + self.tensor


@functools.cache
def costs(name: str) -> dict[str, Any]:
    sizes = SIZES[name]
    model = ModelConfig(
        **sizes,
        d_ff=4 * sizes['d_model'],
        dtype='bfloat16',
        residual='pre_norm',
        scan_layers=True,
    )
    config = ExperimentConfig(
        tokenizer=f'sentencepiece(vocab_size={VOCABULARY})',
        model=model,
        batch=BatchConfig(tokens=ROWS * LENGTH, max_length=LENGTH),
    )
    train = dataclasses.replace(config.train, remat='blocks')
    return ledger(dataclasses.replace(config, train=train))


def memory(name: str, mesh: Layout, work: Work) -> float:
    """Bytes of a device."""
    d, layers, heads = SIZES[name].values()
    tokens = work.rows * work.length
    parameters = costs(name)['parameters']['total'] / (mesh.fsdp * mesh.tensor)
    # Of a token, in an encoder's and a decoder's layer: what each device of `tensor`
    # has, and what they divide.
    whole = 5 * 6 * d
    divided = 48 * d + 3 * 9 * heads * work.length
    pair = tokens * (whole + divided / mesh.tensor)
    embedding = 6 * VOCABULARY * d / mesh.tensor if mesh.fsdp > 1 else 0
    if work.remat == 'none':
        weights = 2 * 28 * d * d / mesh.tensor
        return 12 * parameters + layers * (pair + weights) + embedding
    inputs = layers * 2 * tokens * 4 * d
    gathered = 6 * 16 * d * d / mesh.tensor if mesh.fsdp > 1 else 0
    return (12 + 4) * parameters + inputs + pair + gathered + embedding


def step(name: str, mesh: Layout, work: Work, chip: Chip = V5E) -> Step:
    found = costs(name)
    shard = BATCH / (mesh.data * mesh.fsdp)  # tokens
    parts = shard / (work.rows * work.length)
    parameters = found['parameters']['total'] / mesh.tensor
    flops = found['flops_per_token']['total']
    gathers, sums = 1, 10
    if work.remat == 'blocks':
        flops += found['recomputed']['flops_per_token']
        gathers, sums = 2, 15
    layers, d = SIZES[name]['num_layers'], SIZES[name]['d_model']
    activations = sums * layers * 4 * shard * d

    def ring(sent: float, devices: int) -> float:
        return sent * (devices - 1) / devices / chip.fast

    groups = max(1, math.prod(mesh) // chip.group)
    within = ring(2 * 4 * parameters / mesh.fsdp, mesh.data // groups)
    beyond = 2 * 4 * parameters * mesh.tensor / chip.group
    beyond *= (groups - 1) / groups / chip.slow
    return Step(
        products=shard * flops / mesh.tensor / (chip.flops * UTILISATION),
        gathers=ring(parts * gathers * 2 * parameters, mesh.fsdp),
        data=within + beyond,
        fsdp=ring(parts * 4 * parameters, mesh.fsdp),
        tensor=ring(2 * activations, mesh.tensor),
    )


def layouts(chips: int, chip: Chip) -> list[Layout]:
    """Those that divide the batch's rows; `data` alone goes beyond a group."""
    found = []
    for fsdp, tensor in itertools.product(POWERS, (1, 2, 4, 8)):
        data = chips // (fsdp * tensor)
        if data and fsdp * tensor <= chip.group and data * fsdp * LENGTH <= BATCH:
            found.append(Layout(data, fsdp, tensor))
    return found


def fastest(
    name: str, meshes: list[Layout], chip: Chip
) -> tuple[Layout, Work, Step] | None:
    """Of those that fit into a chip's memory."""
    found = []
    for mesh, remat, rows in itertools.product(meshes, REMAT, AT_ONCE):
        work = Work(remat, rows)
        divides = rows * LENGTH * mesh.data * mesh.fsdp <= BATCH
        if divides and memory(name, mesh, work) <= chip.memory:
            found.append((mesh, work, step(name, mesh, work, chip)))
    return min(found, key=lambda case: case[2].seconds, default=None)


def compiled() -> list[list[str]]:
    """Memory beside the figures of the tables of benchmarks/README.md."""
    text = Path(__file__).with_name('README.md').read_text('utf-8')
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip('|').split('|')]
        if cells[0] not in SIZES:
            continue
        mesh = Layout(*map(int, re.findall(r'\d+', cells[1])))
        if len(cells) == 7:
            cases = [(Work(remat), cells[5 + REMAT.index(remat)]) for remat in REMAT]
        else:
            rows_, length = map(int, re.findall(r'\d+', cells[2]))
            cases = [(Work(cells[3], rows_, length), cells[4])]
        for work, xla in cases:
            ours = memory(cells[0], mesh, work) / 1e9
            off = '' if xla == '—' else f'{ours / float(xla) - 1:+.0%}'
            shape = f'{work.rows} × {work.length}'
            rows.append([*cells[:2], shape, work.remat, f'{ours:.2f}', xla, off])
    return rows


def paying() -> list[list[str]]:
    """The most chips that compute for `PAYS` of a step, by the kind of mesh."""
    rows = []
    for name in SIZES:
        cells = [name]
        for kind in ('data', 'fsdp', 'tensor'):
            most = '—'
            for chips in POWERS:
                tensor = min(8, chips) if kind == 'tensor' else 1
                fsdp = 1 if kind == 'data' else min(chips, V5E.group) // tensor
                mesh = Layout(chips // (fsdp * tensor), fsdp, tensor)
                case = fastest(name, [mesh], V5E)
                if case and case[2].products >= PAYS * case[2].seconds:
                    most = str(chips)
            cells.append(most)
        rows.append(cells)
    return rows


def runs(chip: Chip) -> list[list[str]]:
    rows = []
    for name, chips in itertools.product(SIZES, CHIPS):
        case = fastest(name, layouts(chips, chip), chip)
        if case is None:
            rows.append([name, str(chips), 'does not fit', *[''] * 7])
            continue
        mesh, work, found = case
        steps = TOKENS_A_PARAMETER * costs(name)['parameters']['total'] / BATCH
        hours = steps * found.seconds / 3600
        waits = 1 - found.products / found.seconds
        money = f'{hours * chips * DOLLARS:,.0f}' if chip is V5E else ''
        figures = [f'{found.seconds:.3g}', f'{waits:.0%}', f'{hours:,.3g}']
        figures += [f'{hours * chips:,.0f}', money]
        shape = ' × '.join(map(str, mesh))
        done = [shape, str(work.rows), work.remat]
        rows.append([name, str(chips), *done, *figures])
    return rows


def main() -> None:
    heads = ['model', 'mesh', 'rows', 'remat', 'formula GB', 'XLA GB', 'off']
    print(console.table(heads, compiled()))
    print(console.table(['model', 'data', 'fsdp', 'tensor 8 × fsdp'], paying()))
    heads = ['model', 'chips', 'mesh', 'rows', 'remat', 'step s', 'waits', 'hours']
    heads += ['chip hours', '$']
    for chip in (V5E, H100):
        print(console.table(heads, runs(chip)))


if __name__ == '__main__':
    main()
