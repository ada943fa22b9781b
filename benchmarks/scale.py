"""Time, memory and price of training on N chips.

    python -m benchmarks.scale

docs/explanation/scale.md explains the formulas. benchmarks/README.md compares them with
XLA's figures.
"""

import dataclasses
import functools
import itertools
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import mesh_memory
from benchmarks.mesh_memory import LENGTH, MODELS, REMAT, ROWS, VOCABULARY
from experiments.command_line import console
from experiments.config.schema import BatchConfig, ExperimentConfig
from experiments.costs.ledger import ledger
from flaxformer_lite.config.schema import ModelConfig

BATCH = 2**19  # target tokens per step, over all chips
TOKENS_A_PARAMETER = 20
CHIPS = (1, 8, 32, 256, 1024)
POWERS = [2**n for n in range(11)]
AT_ONCE = (64, 32, 16, 8, 4, 2)  # rows of a device; more are accumulated
PASSES = {'none': 2, 'blocks': 3}  # forward, rematerialized forward, backward
PAYS = 0.8  # the minimum share of a step in which a chip computes


class Chip(NamedTuple):
    """Published figures of a chip: bytes and FLOPs per second."""

    flops: float
    memory: float
    fast: float  # sent along one axis of a mesh, within a group
    group: int  # chips joined by such links
    slow: float  # sent to other groups


UTILISATION = 0.5  # assumed share of `flops`
V5E = Chip(197e12, 16.9e9, 1e11, 256, 6.4e12 / 8 / 256)
H100 = Chip(990e12, 80e9, 4.5e11, 8, 5e10)
DOLLARS = 1.2  # per hour of a v5e, 2025-02-03


class Layout(NamedTuple):
    data: int
    fsdp: int
    tensor: int


class Work(NamedTuple):
    """A device's share of a pass: rows, their length, and `train.remat`."""

    remat: str
    rows: int = ROWS
    length: int = LENGTH


class Traffic(NamedTuple):
    """Bytes of a step's collectives, as results on one device."""

    gathers: float  # of weights, along `fsdp`
    data: float  # sums of gradients
    fsdp: float  # sums of gradients, along `fsdp`
    tensor: float  # sums of layers' outputs


class Step(NamedTuple):
    """Seconds of a step on one chip."""

    products: float
    seconds: float  # in total


Case = tuple[Layout, Work, Step]


@functools.cache
def costs(name: str, layers: int | None = None) -> dict[str, Any]:
    fields = mesh_memory.model_fields(name)
    if layers is not None:
        fields['num_layers'] = layers
    config = ExperimentConfig(
        tokenizer=f'sentencepiece(vocab_size={VOCABULARY})',
        model=ModelConfig(**fields),
        batch=BatchConfig(tokens=ROWS * LENGTH, max_length=LENGTH),
    )
    train = dataclasses.replace(config.train, remat='blocks')
    return ledger(dataclasses.replace(config, train=train))


def memory(name: str, mesh: Layout, work: Work) -> float:
    d, layers, heads = MODELS[name].values()
    tokens = work.rows * work.length
    parameters = costs(name)['parameters']['total'] / (mesh.fsdp * mesh.tensor)
    # Bytes per token in an encoder and a decoder layer: replicated over `tensor`, and
    # divided by it.
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


def traffic(
    name: str, mesh: Layout, work: Work, tokens: float, layers: int | None = None
) -> Traffic:
    """Returns the bytes that a device receives for its `tokens`, `work` at a time."""
    d, depth, _ = MODELS[name].values()
    layers = layers or depth
    parts = tokens / (work.rows * work.length)
    parameters = costs(name, layers)['parameters']['total'] / mesh.tensor
    gathers = data = fsdp = tensor = 0.0
    if mesh.fsdp > 1:
        # In bfloat16 before each pass but the last; the embedding also in float32.
        once = (PASSES[work.remat] - 1) * 2 * parameters
        gathers = parts * (once + 4 * VOCABULARY * d / mesh.tensor)
        fsdp = parts * 4 * parameters
    if mesh.data > 1:
        data = 4 * parameters / mesh.fsdp
    if mesh.tensor > 1:
        # Two sums in a layer of the encoder, three in one of the decoder.
        tensor = PASSES[work.remat] * 5 * layers * 4 * tokens * d
    return Traffic(gathers, data, fsdp, tensor)


def step(name: str, mesh: Layout, work: Work, chip: Chip = V5E) -> Step:
    tokens = BATCH / (mesh.data * mesh.fsdp)
    flops = costs(name)['flops_per_token']['total']
    if work.remat == 'blocks':
        flops += costs(name)['recomputed']['flops_per_token']
    products = tokens * flops / mesh.tensor / (chip.flops * UTILISATION)

    def ring(received: float, devices: int) -> float:
        return received * (devices - 1) / devices / chip.fast

    found = traffic(name, mesh, work, tokens)
    gathers = ring(found.gathers, mesh.fsdp)
    groups = max(1, math.prod(mesh) // chip.group)
    # A sum that every device needs in full goes around the ring twice.
    sums = ring(2 * found.data, mesh.data // groups)
    sums += ring(found.fsdp, mesh.fsdp)
    sums += ring(2 * found.tensor, mesh.tensor)
    # Each chip of a group sends its part of the gradients to the other groups.
    parameters = costs(name)['parameters']['total']
    beyond = 2 * 4 * parameters / chip.group
    sums += beyond * (groups - 1) / groups / chip.slow
    return Step(products, max(products, gathers) + sums)


def layouts(chips: int, chip: Chip) -> list[Layout]:
    """Returns layouts that divide the batch's rows; only `data` spans groups."""
    found = []
    for fsdp, tensor in itertools.product(POWERS, (1, 2, 4, 8)):
        data = chips // (fsdp * tensor)
        if data and fsdp * tensor <= chip.group and data * fsdp * LENGTH <= BATCH:
            found.append(Layout(data, fsdp, tensor))
    return found


def fastest(name: str, meshes: list[Layout], chip: Chip) -> Case | None:
    found = []
    for mesh, remat, rows in itertools.product(meshes, REMAT, AT_ONCE):
        work = Work(remat, rows)
        divides = rows * LENGTH * mesh.data * mesh.fsdp <= BATCH
        if divides and memory(name, mesh, work) <= chip.memory:
            found.append((mesh, work, step(name, mesh, work, chip)))
    return min(found, key=lambda case: case[2].seconds, default=None)


@functools.cache
def measured() -> str:
    return Path(__file__).with_name('README.md').read_text('utf-8')


def received() -> list[list[str]]:
    pattern = (
        r'^\| (\d+ × \d+ × \d+) \| ([\d.]+) \| \d+ \| ([\d.]+) \| \d+ \| ([\d.]+) \|$'
    )
    rows = []
    for mesh, *found in re.findall(pattern, measured(), re.M):
        xla_tera, xla_gathers, xla_sums = map(float, found)
        layout = Layout(*map(int, mesh.split(' × ')))
        tokens = ROWS * LENGTH
        flops = costs('wmt_big', 2)['flops_per_token']['total']
        tera = tokens * flops / layout.tensor / 1e12
        gathers, *sums = traffic('wmt_big', layout, Work('none'), tokens, 2)
        xla = xla_gathers + xla_sums
        ours = (gathers + sum(sums)) / 1e6
        row = [mesh, f'{tera:.3f}', f'{xla_tera:.3f}', f'{tera / xla_tera - 1:+.1%}']
        row += [f'{ours:.0f}', f'{xla:.0f}', f'{ours / xla - 1:+.0%}']
        rows.append(row)
    return rows


def compiled() -> list[list[str]]:
    found = re.findall(
        r'^\| ([\w ]+) \| (\d+ × \d+ × \d+) \| (.*) \|$', measured(), re.M
    )
    rows = []
    for name, mesh, rest in found:
        cells = [cell.strip() for cell in rest.split('|')]
        shape = cells[0] if '×' in cells[0] else f'{ROWS} × {LENGTH}'
        layout = Layout(*map(int, mesh.split(' × ')))
        of_rows, length = map(int, shape.split(' × '))
        for remat, xla in zip(REMAT, cells[-2:], strict=True):
            if not xla:
                continue
            ours = memory(name, layout, Work(remat, of_rows, length)) / 1e9
            off = f'{ours / float(xla) - 1:+.0%}' if xla != '—' else ''
            rows.append([name, mesh, shape, remat, f'{ours:.2f}', xla, off])
    return rows


def paying() -> list[list[str]]:
    """Returns the most chips that compute for `PAYS` of a step, by kind of mesh."""
    kinds = (
        lambda mesh: mesh.fsdp == 1 and mesh.tensor == 1,
        lambda mesh: mesh.fsdp > 1 and mesh.tensor == 1,
        lambda mesh: mesh.tensor > 1,
    )
    rows = []
    for name in MODELS:
        most = ['—'] * len(kinds)
        for (index, kind), chips in itertools.product(enumerate(kinds), POWERS):
            meshes = [mesh for mesh in layouts(chips, V5E) if kind(mesh)]
            case = fastest(name, meshes, V5E)
            if case and case[2].products >= PAYS * case[2].seconds:
                most[index] = str(chips)
        rows.append([name, *most])
    return rows


def runs(chip: Chip) -> list[list[str]]:
    rows = []
    for name, chips in itertools.product(MODELS, CHIPS):
        case = fastest(name, layouts(chips, chip), chip)
        if case is None:
            rows.append([name, str(chips), 'does not fit', *[''] * 7])
            continue
        mesh, work, found = case
        steps = TOKENS_A_PARAMETER * costs(name)['parameters']['total'] / BATCH
        hours = steps * found.seconds / 3600
        waits = 1 - found.products / found.seconds
        row = [name, str(chips), ' × '.join(map(str, mesh)), str(work.rows), work.remat]
        row += [f'{found.seconds:.3g}', f'{waits:.0%}', f'{hours:,.3g}']
        money = f'{hours * chips * DOLLARS:,.0f}' if chip is V5E else ''
        rows.append([*row, f'{hours * chips:,.0f}', money])
    return rows


def main() -> None:
    heads = ['model', 'mesh', 'rows', 'remat', 'formula GB', 'XLA GB', 'off']
    print(console.table(heads, compiled()))
    heads = ['mesh', 'TFLOPs', 'XLA', 'off', 'MB received', 'XLA', 'off']
    print(console.table(heads, received()))
    print(console.table(['model', 'data alone', 'fsdp', 'tensor'], paying()))
    heads = ['model', 'chips', 'mesh', 'rows', 'remat', 'step s', 'waits', 'hours']
    for chip in (V5E, H100):
        print(console.table([*heads, 'chip hours', '$'], runs(chip)))


if __name__ == '__main__':
    main()
