"""What a program costs, read off its jaxpr: the FLOPs of its products, the bytes that it keeps.

The compiler's own analysis is of a compiled program, and counts the body of a loop once, however
many turns it takes.
"""

from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Any

from jax.extend import core

Var = core.Var | core.Literal
# What a variable holds, equal for two that hold the same numbers: a mark of its own for each array,
# followed by the dtypes that the array was cast to. Nothing, for constants.
Origin = tuple[Any, ...]
_CONSTANT: Origin = ()
# Other shapes of an array, which need no copy of it.
_VIEWS = ('reshape', 'squeeze', 'transpose', 'broadcast_in_dim', 'copy')


def flops(jaxpr: core.Jaxpr, path: str = '') -> Counter[str]:
    """FLOPs of matrix products by the named scopes they are in: 2 n k m for n × k by k × m.

    Other operations are left out, inner products of two vectors among them. What a mask hides
    counts, as it is computed too, and of a condition the dearest branch does.

    Raises:
      ValueError: there are products in a `while` loop, whose number of turns only its data tell.
    """
    total = Counter()
    for eqn in jaxpr.eqns:
        name, here = eqn.primitive.name, f'{path}/{eqn.source_info.name_stack}'
        if _is_product(eqn):
            total[here] += _product(eqn)
            continue
        parts = [flops(inner, here) for inner in core.jaxprs_in_params(eqn.params)]
        if name == 'while' and any(parts):
            raise ValueError(
                f'{here}: FLOPs of a `while` loop cannot be counted; `scan` can'
            )
        if name == 'cond':
            parts = [max(parts, key=Counter.total)]
        turns = eqn.params['length'] if name == 'scan' else 1
        for part in parts:
            total.update({key: turns * count for key, count in part.items()})
    return total


def _is_product(eqn: Any) -> bool:
    return eqn.primitive.name == 'dot_general' and eqn.outvars[0].aval.ndim > 0


def _product(eqn: Any) -> int:
    (contracted, _), _ = eqn.params['dimension_numbers']
    shape = eqn.invars[0].aval.shape
    return 2 * eqn.outvars[0].aval.size * prod(shape[axis] for axis in contracted)


def operations(jaxpr: core.Jaxpr) -> int:
    """About how large a program is to the compiler: its operations, those of loops counted thrice.

    What a loop holds, and its gradient all the more, takes the compiler some three times as much.
    """
    total = 0
    for eqn in jaxpr.eqns:
        weight = 3 if eqn.primitive.name == 'scan' else 1
        inner = core.jaxprs_in_params(eqn.params)
        total += 1 + weight * sum(operations(part) for part in inner)
    return total


def size(values: Iterable[Any]) -> int:
    """Bytes of values of whatever kind has a `shape` and a `dtype`."""
    return sum(prod(x.shape) * x.dtype.itemsize for x in values)


def kept(jaxpr: core.Jaxpr, values: Iterable[Var]) -> int:
    """Bytes that keeping `values`, results of a program, takes.

    Its arguments are there anyway and constants are made where they are needed: they do not count.
    What is there in several shapes counts once.
    """
    origins: dict[Var, Origin] = {var: (object(),) for var in jaxpr.invars}
    given = {_CONSTANT, *origins.values()}
    _follow(jaxpr, origins)
    arrays = {_origin(var, origins): var.aval for var in values}
    return size(aval for origin, aval in arrays.items() if origin not in given)


def _follow(jaxpr: core.Jaxpr, origins: dict[Var, Origin]) -> None:
    """Adds the origin of each variable."""
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
    return _CONSTANT if isinstance(var, core.Literal) else origins.get(var, _CONSTANT)


def _results(eqn: Any, sources: list[Origin]) -> list[Origin]:
    if not any(sources):
        return [_CONSTANT for _ in eqn.outvars]
    name, array = eqn.primitive.name, eqn.outvars[0].aval
    if name in _VIEWS and array.size == eqn.invars[0].aval.size:
        return [sources[0]]
    if name == 'convert_element_type':
        return [(*sources[0], array.dtype)]
    return [(object(),) for _ in eqn.outvars]
