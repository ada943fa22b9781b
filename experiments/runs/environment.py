"""What a run ran on: versions, devices and the commit, for `environment.json`."""

import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.errors import UserError

CPUINFO = Path('/proc/cpuinfo')
PACKAGES = (
    *('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy'),
    *('sentencepiece', 'sacrebleu'),
)
# The vector extensions of x86 and ARM: with others a compiler orders sums otherwise,
# and so rounds otherwise.
VECTORS = re.compile(r'(sse4|avx|fma|f16c|amx|neon|asimd|sve|sme2?\b)\w*')


def describe(devices: Sequence[str]) -> dict[str, Any]:
    """Versions, platform and commit; `devices` are the kinds of the devices."""
    return {
        'python': platform.python_version(),
        'packages': {name: _version(name) for name in PACKAGES},
        'platform': platform.platform(),
        'processor': processor(),
        'devices': {kind: devices.count(kind) for kind in devices},
        'git': _git_commit(),
    }


def processor() -> dict[str, Any]:
    """The processor's name, and its vector extensions, by which sums are rounded.

    The extensions are known on Linux only.
    """
    cpu = _cpu_facts()
    names = (cpu.get('model name'), platform.processor(), platform.machine())
    name = next(filter(None, names), '')
    flags = [*cpu.get('flags', '').split(), *cpu.get('Features', '').split()]
    vectors = sorted(filter(VECTORS.fullmatch, flags))
    return {'name': name, 'vectors': vectors}


def _cpu_facts() -> Mapping[str, str]:
    """What the system says of the first processor; nothing where it is not Linux.

    'model name' and 'flags' on x86, 'Features' on ARM.
    """
    try:
        first = CPUINFO.read_text(encoding='utf-8', errors='replace').split('\n\n')[0]
    except OSError:
        return {}
    lines = (line.partition(':') for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def save(path: Path, devices: Sequence[str]) -> None:
    """Writes `environment.json` in a run's directory.

    Where a run resumes in another environment, the file keeps those before it, oldest
    first, under `earlier`.

    Raises:
      UserError: the file cannot be written, or what is there cannot be read.
    """
    file = path / 'environment.json'
    now = describe(devices)
    earlier = []
    if storage.exists(file):
        before = _read(file)
        earlier = before.pop('earlier', [])
        if before != now:
            earlier.append(before)
    if earlier:
        now['earlier'] = earlier
    storage.write_json(file, now)


def _read(file: Path) -> dict[str, Any]:
    before = storage.read_json(file)
    earlier = before.get('earlier', []) if isinstance(before, dict) else None
    if not isinstance(earlier, list):
        raise UserError(
            f'{file} does not tell what a run ran on: move it away, and a new one is '
            'written'
        )
    return before


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_commit() -> dict[str, Any] | None:
    """The commit of this code, and whether files differ; None outside a checkout."""
    # This file may be installed inside another project's checkout, so ask about itself.
    if _git('ls-files', '--error-unmatch', Path(__file__).name) is None:
        return None
    return {
        'commit': _git('rev-parse', 'HEAD'),
        'changed': bool(_git('status', '--porcelain')),
    }


def _git(*arguments: str) -> str | None:
    command = ['git', '-C', str(Path(__file__).parent), *arguments]
    try:
        result = subprocess.run(
            command, capture_output=True, encoding='utf-8', errors='replace', timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
