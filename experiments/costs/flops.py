"""What a program costs, read from its jaxpr: FLOPs of products, bytes that it keeps.

The compiler's own analysis needs a compiled program, and counts the body of a loop
once, however many iterations it has.
"""

from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Any

from jax.extend import core

Var = core.Var | core.Literal
# What a variable holds, equal for two variables that hold the same numbers: a mark of
# its own for each array, then the dtypes that the array was cast to. Empty for
# constants.
Origin = tuple[Any, ...]
_CONSTANT: Origin = ()
# Operations that give an array another shape without a copy of it.
_VIEWS = ('reshape', 'squeeze', 'transpose', 'broadcast_in_dim', 'copy')


def flops(jaxpr: core.Jaxpr, path: str = '') -> Counter[str]:
    """FLOPs of matrix products by named scope: 2 n k m for n × k by k × m.

    Other operations are left out, also inner products of two vectors, and sums that are
    written as products with ones. What a mask hides counts, for it is computed too; of
    a condition the most expensive branch counts.

    Raises:
      ValueError: there are products in a `while` loop, whose number of iterations only
        its data tell.
    """
    total = Counter()
    filled = set()  # arrays of one number each
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        here = f'{path}/{eqn.source_info.name_stack}'
        if name == 'broadcast_in_dim' and isinstance(eqn.invars[0], core.Literal):
            filled.update(eqn.outvars)
        if _is_product(eqn):
            if filled.isdisjoint(eqn.invars):
                total[here] += _product(eqn)
            continue
        parts = [flops(inner, here) for inner in core.jaxprs_in_params(eqn.params)]
        if name == 'while' and any(parts):
            raise ValueError(
                f'{here}: FLOPs of a `while` loop cannot be counted; `scan` can'
            )
        if name == 'cond':
            parts = [max(parts, key=Counter.total)]
        iterations = eqn.params['length'] if name == 'scan' else 1
        for part in parts:
            for scope, count in part.items():
                total[scope] += iterations * count
    return total


def _is_product(eqn: Any) -> bool:
    return eqn.primitive.name == 'dot_general' and eqn.outvars[0].aval.ndim > 0


def _product(eqn: Any) -> int:
    (contracted, _), _ = eqn.params['dimension_numbers']
    shape = eqn.invars[0].aval.shape
    return 2 * eqn.outvars[0].aval.size * prod(shape[axis] for axis in contracted)


def operations(jaxpr: core.Jaxpr) -> int:
    """About how large a program is to the compiler: its number of operations.

    Those in a loop count three times: about so much more work they are to the compiler,
    above all in gradients.
    """
    total = 0
    for eqn in jaxpr.eqns:
        total += 1
        weight = 3 if eqn.primitive.name == 'scan' else 1
        for inner in core.jaxprs_in_params(eqn.params):
            total += weight * operations(inner)
    return total


def size(values: Iterable[Any]) -> int:
    """Bytes of values that have a `shape` and a `dtype`."""
    return sum(prod(x.shape) * x.dtype.itemsize for x in values)


def kept(jaxpr: core.Jaxpr, values: Iterable[Var]) -> int:
    """Bytes that it takes to keep `values`, which are results of a program.

    Arguments of the program are there anyway, and constants are made where they are
    needed: neither counts. An array that is there in several shapes counts once.
    """
    origins: dict[Var, Origin] = {var: (object(),) for var in jaxpr.invars}
    given = {_CONSTANT, *origins.values()}
    _follow(jaxpr, origins)
    arrays = {_origin(var, origins): var.aval for var in values}
    return size(aval for origin, aval in arrays.items() if origin not in given)


def _follow(jaxpr: core.Jaxpr, origins: dict[Var, Origin]) -> None:
    """Adds the origin of each variable of a program to `origins`."""
    for eqn in jaxpr.eqns:
        sources = [_origin(var, origins) for var in eqn.invars]
        if eqn.primitive.name in ('jit', 'pjit'):
            (inner,) = core.jaxprs_in_params(eqn.params)
            origins.update(zip(inner.invars, sources, strict=True))
            _follow(inner, origins)
            results = [_origin(var, origins) for var in inner.outvars]
        else:
            results = _results(eqn, sources)
        origins.update(zip(eqn.outvars, results, strict=True))


def _origin(var: Var, origins: dict[Var, Origin]) -> Origin:
    if isinstance(var, core.Literal):
        return _CONSTANT
    return origins.get(var, _CONSTANT)


def _results(eqn: Any, sources: list[Origin]) -> list[Origin]:
    """The origins of an operation's results."""
    if not any(sources):
        return [_CONSTANT for _ in eqn.outvars]
    name = eqn.primitive.name
    array = eqn.outvars[0].aval
    if name in _VIEWS and array.size == eqn.invars[0].aval.size:
        return [sources[0]]
    if name == 'convert_element_type':
        return [(*sources[0], array.dtype)]
    return [(object(),) for _ in eqn.outvars]
