"""FLOPs of a program's matrix products, read from its jaxpr."""

import math
from collections import Counter
from typing import Any

from jax.extend import core

from flaxformer_lite.jax_compat import jaxprs_in_params


def flops(jaxpr: core.Jaxpr, path: str = '') -> Counter[str]:
    """Counts FLOPs of matrix products by named scope: 2 n k m for n × k by k × m.

    Leaves out inner products of two vectors and sums written as products with ones.
    Masked entries count. A condition counts its most expensive branch, and an operation
    with versions per platform the cheapest, since others pad their operands.

    Raises:
      ValueError: A `while` loop contains products.
    """
    total = Counter()
    filled = set()  # arrays filled with one number
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        here = f'{path}/{eqn.source_info.name_stack}'
        if name == 'broadcast_in_dim' and isinstance(eqn.invars[0], core.Literal):
            filled.update(eqn.outvars)
        if name == 'dot_general':
            if filled.isdisjoint(eqn.invars):
                total[here] += _product(eqn)
            continue
        parts = [flops(inner, here) for inner in jaxprs_in_params(eqn.params)]
        if name == 'while' and any(parts):
            raise ValueError(
                f'{here}: FLOPs of a `while` loop cannot be counted; `scan` can'
            )
        if name == 'cond':
            by_cost = sorted(filter(None, parts), key=Counter.total)
            is_platform_dependent = bool(eqn.params.get('branches_platforms'))
            parts = by_cost[:1] if is_platform_dependent else by_cost[-1:]
        iterations = eqn.params['length'] if name == 'scan' else 1
        for part in parts:
            for scope, count in part.items():
                total[scope] += iterations * count
    return total


def _product(eqn: Any) -> int:
    (product,) = eqn.outvars
    if not product.aval.ndim:
        return 0
    (contracted, _), _ = eqn.params['dimension_numbers']
    shape = eqn.invars[0].aval.shape
    terms = math.prod(shape[axis] for axis in contracted)
    return 2 * product.aval.size * terms
