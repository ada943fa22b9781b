"""What the system says of the processor."""

from collections.abc import Mapping
from pathlib import Path

CPUINFO = Path('/proc/cpuinfo')


def facts() -> Mapping[str, str]:
    """The facts about the first processor by their names; empty where it has none.

    Linux alone has them: 'model name' and 'flags' on x86, 'Features' on ARM.
    """
    try:
        first = CPUINFO.read_text(encoding='utf-8', errors='replace').split('\n\n')[0]
    except OSError:
        return {}
    lines = (line.partition(':') for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}
