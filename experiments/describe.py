"""Prints the training costs of a config (parameters, FLOPs, memory), or its data.

python -m experiments.describe --config=configs/wmt_base.py --config.model.d_k=16
python -m experiments.describe --config=configs/scan.py --data
python -m experiments.describe --config=configs/wmt_small.py --gold >gold.jsonl
"""

# PYTHON_ARGCOMPLETE_OK
if __name__ == '__main__':
    from experiments.command_line import command

    command.run('experiments.describe')

import json
import math
from pathlib import Path
from typing import Any

from experiments import registries
from experiments.command_line import console, flags
from experiments.config.schema import ExperimentConfig

Costs = dict[str, dict[str, int]]  # as `ledger` returns them


def main() -> None:
    parser = flags.Parser(__doc__)
    parser.add_argument(
        '--json', action='store_true', help='print JSON with numbers and bytes'
    )
    parser.add_argument(
        '--compile',
        action='store_true',
        help='compile the training step and report its memory on these devices',
    )
    parser.add_argument(
        '--data',
        action='store_true',
        help='describe the data instead: sizes, lengths, overlap, examples',
    )
    parser.add_argument(
        '--write',
        type=Path,
        metavar='FOLDER',
        help='write the data to this directory as text, one example per line',
    )
    parser.add_argument(
        '--gold',
        action='store_true',
        help='print as JSON lines which words of the evaluation sets translate each '
        'other, and which decide each German form (data: grammar)',
    )
    args, settings = flags.parse(parser)
    # Import JAX only after the flags, so that errors in flags show at once.
    from experiments.config import check
    from experiments.costs.ledger import ledger

    check.check_overrides(settings.config, settings.overrides)
    if args.gold:
        print_gold(settings.config)
        return
    if args.data or args.write:
        show_data(settings.config, args.write)
        return
    costs = ledger(settings.config)
    if args.compile:
        costs['memory'] = step_memory(settings.config)
    if args.json:
        console.print_data(json.dumps(costs, indent=2))
    else:
        print(text(costs))


def show_data(config: ExperimentConfig, folder: Path | None) -> None:
    from experiments.data import filters, sources
    from experiments.evaluation import overview

    chosen = registries.make_all('filters', config.filters)
    source = filters.apply(sources.load(config.data), chosen)
    if folder is None:
        print(overview.text(source))
    else:
        overview.write(source, folder)


def print_gold(config: ExperimentConfig) -> None:
    """Prints a line of JSON for each pair of the evaluation sets.

    A line has the set and the fields of `parallel_grammar.Gold`; words are indices.
    """
    from experiments.data import sources

    for name, golds in sources.load(config.data).gold().items():
        for gold in golds:
            fields = {'set': name, **gold.as_json()}
            console.print_data(json.dumps(fields, ensure_ascii=False))


def step_memory(config: ExperimentConfig) -> dict[str, int]:
    """Compiles the training step and returns XLA's estimate of its bytes per device.

    Returns:
      arrays: The state and a batch.
      working: Additional memory.
    """
    from experiments.config import check, components
    from experiments.costs.ledger import batch_shape
    from experiments.optimizers.optimizer import LONG
    from experiments.runtime import compilation, mesh
    from experiments.training.programs import TrainingPrograms
    from experiments.training.teacher import open_teacher

    compilation.use_cache()
    devices = mesh.make_mesh(**vars(config.mesh))
    run_components = components.build(config)
    check.check_backend(config)
    rows, length = batch_shape(config.batch, config.train.accumulate)
    multiple = config.train.accumulate * devices.row_shards
    shape = math.ceil(rows / multiple) * multiple, length
    teacher = open_teacher(config.train.teacher)
    programs = TrainingPrograms.of(config, run_components, LONG, devices, teacher)
    program = programs.step(shape, teacher and teacher.variables)
    found: Any = program.memory_analysis()
    # The new state reuses the donated buffers of the old one (XLA's aliases).
    new_outputs = found.output_size_in_bytes - found.alias_size_in_bytes
    return {
        'arrays': found.argument_size_in_bytes,
        'working': found.temp_size_in_bytes + new_outputs,
    }


def text(costs: Costs) -> str:
    return f'{_parts_table(costs)}\n\n{console.facts(_facts(costs))}'


def _parts_table(costs: Costs) -> str:
    columns = {'parameters': costs['parameters']}
    if costs['trained'] != costs['parameters']:
        columns['trained'] = costs['trained']
    columns['FLOPs per token'] = costs['flops_per_token']
    named = costs['parameters'] | costs['flops_per_token']
    parts = [part for part in named if part != 'total']
    rows = []
    for part in [*parts, 'total']:
        cells = [column.get(part) for column in columns.values()]
        rows.append([part, *cells])
    return console.table(['part', *columns], rows)


def _facts(costs: Costs) -> dict[str, str]:
    batch = costs['batch']
    tokens = batch['tokens']
    flops = costs['flops']['batch']
    facts = {
        'batch': f'{batch["rows"]:,} × {batch["length"]:,} = {tokens:,} tokens',
        'FLOPs per batch': f'{flops / 1e12:,.4g} × 10¹²',
    }
    recomputed_flops = costs['recomputed']['flops_per_token'] * tokens
    if recomputed_flops:
        facts['rematerialized'] = (
            f'{recomputed_flops / 1e12:,.4g} × 10¹² FLOPs per batch'
        )
    for name, size in costs['bytes'].items():
        facts[name] = _megabytes(size)
    device = dict(costs['device'])
    devices = device.pop('devices')
    if devices > 1:
        sizes = ', '.join(f'{name} {_megabytes(size)}' for name, size in device.items())
        facts['per device'] = f'{_megabytes(sum(device.values()))}: {sizes}'
    if 'memory' in costs:
        arrays, working = costs['memory'].values()
        facts['compiled, per device'] = (
            f'{_megabytes(arrays + working)}: arrays {_megabytes(arrays)}, '
            f'temporaries {_megabytes(working)}'
        )
    return facts


def _megabytes(size: int) -> str:
    return f'{size / 1e6:,.1f} MB'
