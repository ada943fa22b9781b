"""The environment of a run, in `environment.json`."""

import contextlib
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.config import user_modules
from experiments.errors import UserError, warn
from experiments.runs import reading

CPUINFO = Path('/proc/cpuinfo')
PACKAGES = (
    *('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy'),
    *('sentencepiece', 'sacrebleu'),
)
# Vector extensions of x86 and ARM. They change the order in which compiled code sums,
# and so its rounding.
VECTORS = re.compile(r'(sse4|avx|fma|f16c|amx|neon|asimd|sve|sme2?\b)\w*')


def describe(devices: Sequence[str], modules: Sequence[str] = ()) -> dict[str, Any]:
    """Returns versions, platform, commit and digests of user modules.

    Args:
      devices: The kind of each device.
      modules: Names of the imported user modules.
    """
    return {
        'python': platform.python_version(),
        'packages': {name: metadata.version(name) for name in PACKAGES},
        'platform': platform.platform(),
        'processor': _processor(),
        'devices': {kind: devices.count(kind) for kind in devices},
        'git': _git_commit(),
        'modules': _digests(modules),
    }


def _processor() -> dict[str, Any]:
    cpu = ''
    with contextlib.suppress(OSError):
        cpu = CPUINFO.read_text(encoding='utf-8', errors='replace')
    names = re.findall(r'^model name\s*: (.*)', cpu, re.MULTILINE)
    names.append(platform.processor() or platform.machine())
    # The key is 'flags' on x86, 'Features' on ARM.
    flags = re.findall(r'^(?:flags|Features)\s*: (.*)', cpu, re.MULTILINE)
    words = ' '.join(flags[:1]).split()
    vectors = set(filter(VECTORS.fullmatch, words))
    return {'name': names[0], 'vectors': sorted(vectors)}


def fastest_dtype(device: Any) -> str:
    """Returns the `model.dtype` with the fastest matrix products on a `jax.Device`.

    NVIDIA GPUs before Ampere (compute capability 8.0) have float16 units only.
    """
    if device.platform == 'cpu':
        x86_extensions = {'avx512_bf16', 'amx_bf16'}
        has_bfloat16 = not x86_extensions.isdisjoint(_processor()['vectors'])
        return 'bfloat16' if has_bfloat16 else 'float32'
    capability = getattr(device, 'compute_capability', None)
    if device.platform == 'gpu' and capability and float(capability) < 8:
        return 'float16'
    return 'bfloat16'


def save(path: Path, devices: Sequence[str], modules: Sequence[str] = ()) -> None:
    """Writes `environment.json` in a run's directory.

    If a run resumes in another environment, `earlier` keeps the previous ones.
    """
    current = describe(devices, modules)
    stored = reading.read_environment(path)
    earlier = stored.pop('earlier', [])
    if stored and stored != current:
        earlier.append(stored)
    if earlier:
        current['earlier'] = earlier
    storage.write_json(path / reading.ENVIRONMENT, current)


def check_modules(
    path: Path, tell: Callable[[str], None] = warn, accept_changed: bool = True
) -> None:
    """Tells which user modules have changed or are missing since a run started.

    Raises UserError if a module is missing, or if one has changed and `accept_changed`
    is False.
    """
    recorded = reading.read_environment(path).get('modules', {})
    here = _digests(recorded)
    missing = sorted(recorded.keys() - here.keys())
    if missing:
        files = ', '.join(recorded[name]['file'] for name in missing)
        raise UserError(
            f'{path}: cannot import {", ".join(missing)}. Copy {files} to the working '
            'directory.'
        )
    changed = [x for x in here if here[x]['sha256'] != recorded[x]['sha256']]
    if changed:
        files = ', '.join(here[name]['file'] for name in changed)
        message = f'{files}: changed since the run {path} started'
        if not accept_changed:
            raise UserError(
                f'{message}. Restore it, choose another --workdir, or pass '
                '--accept_changed_code.'
            )
        tell(message)


def _digests(modules: Iterable[str]) -> dict[str, dict[str, str]]:
    """Returns the file and the SHA-256 of each module that can be imported here."""
    found = {}
    for name in modules:
        file = user_modules.file_of(name)
        if file is not None:
            found[name] = {'file': str(file), 'sha256': storage.sha256(file)}
    return found


def _git_commit() -> dict[str, Any] | None:
    """Returns this code's commit, and whether files differ; None outside a checkout."""
    # It may be installed inside another project's checkout, so ask about this file.
    if _git('ls-files', '--error-unmatch', Path(__file__).name) is None:
        return None
    # Untracked files, such as a user's sweep, don't change this code.
    changed = bool(_git('status', '--porcelain', '--untracked-files=no'))
    return {'commit': _git('rev-parse', 'HEAD'), 'changed': changed}


def _git(*arguments: str) -> str | None:
    command = ['git', '-C', str(Path(__file__).parent), *arguments]
    try:
        output = subprocess.check_output(command, stderr=subprocess.DEVNULL, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return output.decode(errors='replace').strip()
