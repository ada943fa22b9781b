"""The collective operations of a compiled program."""

import math
import re
from typing import NamedTuple

import jax

BYTES = {
    **dict.fromkeys(('pred', 's8', 'u8'), 1),
    **dict.fromkeys(('bf16', 'f16', 's16', 'u16'), 2),
    **dict.fromkeys(('f32', 's32', 'u32'), 4),
    **dict.fromkeys(('f64', 's64', 'u64'), 8),
}
KINDS = (
    'all-reduce',
    'all-gather',
    'reduce-scatter',
    'collective-permute',
    'all-to-all',
)
# `ENTRY %main (x: f32[3]) -> f32[3] {`, at the beginning of a line.
_HEAD = re.compile(r'(?:ENTRY )?%?([\w.-]+) \(.*\{$')
# `%name = f32[3]{0} all-reduce(`; a tuple's type has several shapes.
_COLLECTIVE = re.compile(rf' = (.*?) ({"|".join(KINDS)})(?:-start)?\(')
_SHAPE = re.compile(r'\b([a-z]+\d*)\[([\d,]*)\]')
_NAMED = re.compile(
    r'\b(calls|to_apply|body|condition|\w+_computations?)=(\{[^}]*\}|%?[\w.-]+)'
)


class Collective(NamedTuple):
    """One collective operation.

    Attributes:
      in_loop: Whether a loop runs it, directly or through a called computation.
      bytes: Size of its results on one device.
    """

    kind: str
    in_loop: bool
    bytes: int


def collectives(program: jax.stages.Compiled) -> list[Collective]:
    """Returns all collectives of a program, each once even if in a loop."""
    lines = _lines_by_computation(program.as_text() or '')
    looped = _in_loops(lines)
    found = []
    for computation, body in lines.items():
        for line in body:
            match = _COLLECTIVE.search(line)
            if match:
                result, kind = match.groups()
                in_loop = computation in looped
                found.append(Collective(kind, in_loop, _size(result)))
    return found


def total_bytes(found: list[Collective]) -> int:
    return sum(each.bytes for each in found)


def _lines_by_computation(text: str) -> dict[str, list[str]]:
    lines: dict[str, list[str]] = {}
    body: list[str] = []
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            body = lines[head[1]] = []
        else:
            body.append(line)
    return lines


def _in_loops(lines: dict[str, list[str]]) -> set[str]:
    calls: dict[str, set[str]] = {}
    waiting = []
    for computation, body in lines.items():
        calls[computation] = set()
        for line in body:
            for how, names in _NAMED.findall(line):
                called = re.findall(r'[\w.-]+', names)
                calls[computation].update(called)
                if how in ('body', 'condition'):
                    waiting += called
    looped: set[str] = set()
    while waiting:
        computation = waiting.pop()
        if computation not in looped:
            looped.add(computation)
            waiting += calls[computation]
    return looped


def _size(result: str) -> int:
    """Returns the bytes of all arrays in a type such as `(f32[3]{0}, s32[])`."""
    sizes = []
    for dtype, axes in _SHAPE.findall(result):
        elements = math.prod(int(size) for size in axes.split(',') if size)
        sizes.append(BYTES[dtype] * elements)
    return sum(sizes)
