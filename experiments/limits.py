"""What may be raised on a run that is there, for it to go on further.

How often it logs, evaluates and saves may not change: no one config would then have the result.
"""

from collections.abc import Mapping
from typing import Any

LIMITS = ('train.steps', 'train.epochs', 'train.patience')


def raised(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, list[int]]:
    """The limits that one flat config raises above another's: `{'train.steps': [12, 24]}`."""
    pairs = {k: [old[k], new[k]] for k in LIMITS if k in old and k in new}
    return {k: pair for k, pair in pairs.items() if _is_more(*pair)}


def _is_more(old: Any, new: Any) -> bool:
    """Whether a limit lets a run go further; 0 is no limit."""
    if not isinstance(old, int) or not isinstance(new, int) or old == 0:
        return False
    return new == 0 or new > old
