"""Prints what training a config costs, without compiling it: parameters, FLOPs, memory.

python -m experiments.describe --config=configs/wmt_base.py --config.model.d_k=16
"""

import json

from experiments.command_line import console, flags


def main() -> None:
    parser = flags.Parser(__doc__)
    parser.add_argument(
        '--json', action='store_true', help='one object: numbers and bytes'
    )
    args, settings = flags.parse(parser)
    # These import JAX, so they come after the flags: a mistyped flag is answered at
    # once.
    from experiments.config import check
    from experiments.costs.ledger import ledger

    check.check_overrides(settings.config, settings.overrides)
    costs = ledger(settings.config)
    print(json.dumps(costs, indent=2) if args.json else text(costs))


def text(costs: dict[str, dict[str, int]]) -> str:
    """A ledger as it is printed."""
    return f'{_parts_table(costs)}\n\n{console.facts(_facts(costs))}'


def _parts_table(costs: dict[str, dict[str, int]]) -> str:
    columns = {'parameters': costs['parameters']}
    if costs['trained'] != costs['parameters']:
        columns['trained'] = costs['trained']
    columns['FLOPs a token'] = costs['flops_per_token']
    named = costs['parameters'] | costs['flops_per_token']
    parts = [part for part in named if part != 'total']
    rows = []
    for part in [*parts, 'total']:
        rows.append([part, *(column.get(part) for column in columns.values())])
    return console.table(['part', *columns], rows)


def _facts(costs: dict[str, dict[str, int]]) -> dict[str, str]:
    """What is printed below the table, by name."""
    batch = costs['batch']
    tokens = batch['tokens']
    flops = costs['flops_per_token']['total'] * tokens
    facts = {
        'batch': f'{batch["rows"]:,} × {batch["length"]:,} = {tokens:,} tokens',
        'FLOPs a batch': f'{flops / 1e12:,.4g} × 10¹²',
    }
    again = costs['recomputed']['flops_per_token'] * tokens
    if again:
        facts['FLOPs again'] = f'{again / 1e12:,.4g} × 10¹² of them twice a batch'
    for name, size in costs['bytes'].items():
        facts[name] = _megabytes(size)
    facts['arrays of a step'] = _megabytes(sum(costs['bytes'].values()))
    device = dict(costs['device'])
    devices = device.pop('devices')
    flops_of_device = device.pop('flops')
    if devices > 1:
        held = ', '.join(f'{name} {_megabytes(size)}' for name, size in device.items())
        facts[f'each of {devices}'] = f'{_megabytes(sum(device.values()))}: {held}'
        facts['FLOPs of each'] = f'{flops_of_device / 1e12:,.4g} × 10¹² a batch'
    peak = costs['peak']['process'] / 1e6
    facts['process'] = (
        f'about {peak:,.0f} MB while it trains on a CPU; decoding may take more'
    )
    return facts


def _megabytes(size: int) -> str:
    return f'{size / 1e6:,.1f} MB'


if __name__ == '__main__':
    flags.main(main)
