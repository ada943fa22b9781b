"""What was found of a contract: that it holds, or the smallest example against it."""

import dataclasses
from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True)
class Finding:
    """One contract, and whether a part keeps it.

    Attributes:
      contract: what must hold, in words.
      holds: None where it could not be tried.
      detail: the smallest example where it does not hold, or why it was not tried.
    """

    contract: str
    holds: bool | None
    detail: str = ''


class BrokenContract(AssertionError):
    """A part does not keep its contracts; the message has a line for each of those."""


def broken(findings: Iterable[Finding]) -> list[Finding]:
    """Those of contracts that do not hold."""
    return [finding for finding in findings if finding.holds is False]


def require(findings: Sequence[Finding], of: str) -> Sequence[Finding]:
    """The same findings, if all contracts hold that could be tried.

    Args:
      findings: of one part.
      of: what it is called.

    Raises:
      BrokenContract: one does not hold.
    """
    lines = [f'{finding.contract}: {finding.detail}' for finding in broken(findings)]
    if lines:
        raise BrokenContract(f'{of} does not keep its contracts\n' + '\n'.join(lines))
    return findings


def told(contract: str, holds: bool, otherwise: str) -> Finding:
    """Whether a contract holds, and what is so where it does not."""
    return Finding(contract, holds, '' if holds else otherwise)


def without(contract: str, examples: Iterable[str]) -> Finding:
    """That there is no example against a contract; of several the first is shown."""
    example = next(iter(examples), '')
    return Finding(contract, not example, example)


def equal(
    contract: str, atol: float, differences: Iterable[tuple[float, str]]
) -> Finding:
    """That all differences are within a tolerance; the first that is not is shown.

    Args:
      contract: what must hold.
      atol: the most that rounding explains.
      differences: each with the words of its example, where {} is for the number; the
        smallest example first.
    """
    for difference, example in differences:
        if not difference <= atol:  # which a NaN is not
            return Finding(contract, False, example.format(f'{difference:.2g}'))
    return Finding(contract, True)
