"""Results of contract tests."""

import dataclasses
from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of testing one contract.

    Attributes:
      holds: None if it could not be tested.
      detail: The smallest counterexample, or why it was not tested.
    """

    contract: str
    holds: bool | None
    detail: str = ''


class BrokenContract(AssertionError):
    """A component breaks contracts; the message has one line for each."""


def broken(findings: Iterable[Finding]) -> list[Finding]:
    """Returns the findings of broken contracts."""
    return [finding for finding in findings if finding.holds is False]


def require(findings: Sequence[Finding], of: str) -> Sequence[Finding]:
    """Returns the findings, or raises BrokenContract that names the component `of`."""
    lines = [f'{finding.contract}: {finding.detail}' for finding in broken(findings)]
    if lines:
        raise BrokenContract(f'{of} breaks contracts:\n' + '\n'.join(lines))
    return findings


def from_condition(contract: str, holds: bool, otherwise: str) -> Finding:
    return Finding(contract, holds, '' if holds else otherwise)


def from_counterexamples(contract: str, examples: Iterable[str]) -> Finding:
    """Returns a finding that the first counterexample, if any, breaks."""
    example = next(iter(examples), '')
    return Finding(contract, not example, example)


def from_differences(
    contract: str, atol: float, differences: Iterable[tuple[float, str]]
) -> Finding:
    """Returns a finding that a difference above the tolerance `atol` breaks.

    Args:
      differences: With a description of each, where {} is the number; the smallest
        example first.
    """
    for difference, example in differences:
        if not difference <= atol:  # also true for NaN
            return Finding(contract, False, example.format(f'{difference:.2g}'))
    return Finding(contract, True)
