"""Prints what training a config costs, without compiling it: parameters, FLOPs, memory.

python -m experiments.describe --config=configs/wmt_base.py --config.model.d_k=16
"""

import json

from experiments import console, flags


def main() -> None:
    parser = flags.Parser(__doc__)
    parser.add_argument(
        '--json', action='store_true', help='one object: numbers and bytes'
    )
    args, settings = flags.parse(parser)
    # From here on, for it imports JAX: a mistyped flag is answered at once.
    from experiments import check
    from experiments.ledger import ledger

    check.check_overrides(settings.config, settings.overrides)
    costs = ledger(settings.config)
    print(json.dumps(costs, indent=2) if args.json else text(costs))


def text(costs: dict[str, dict[str, int]]) -> str:
    """A ledger as it is printed."""
    parameters, flops, batch = (
        costs['parameters'],
        costs['flops_per_token'],
        costs['batch'],
    )
    parts = [part for part in parameters | flops if part != 'total']
    rows = [[part, parameters.get(part), flops.get(part)] for part in [*parts, 'total']]
    facts = {
        'batch': f'{batch["rows"]:,} × {batch["length"]:,} = {batch["tokens"]:,} tokens',
        'FLOPs a batch': f'{flops["total"] * batch["tokens"] / 1e12:,.4g} × 10¹²',
    }
    sizes = costs['bytes'] | {'arrays of a step': sum(costs['bytes'].values())}
    facts |= {name: f'{size / 1e6:,.1f} MB' for name, size in sizes.items()}
    peak = costs['peak']['process'] / 1e6
    facts['process'] = (
        f'about {peak:,.0f} MB while it trains on a CPU; decoding may take more'
    )
    table = console.table(['part', 'parameters', 'FLOPs a token'], rows)
    return f'{table}\n\n{console.facts(facts)}'


if __name__ == '__main__':
    flags.main(main)
