"""Installs the project under a notebook's kernel, as on Colab or Kaggle.

The first cell of each notebook calls `install`. It keeps the runtime's JAX if this
project runs on it, and the NumPy that the kernel has loaded.
"""

import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[1]
_OLDEST_PYTHON = (3, 11)
_CUDA_13_DRIVER = 580  # the oldest that runs CUDA 13
_NO_NETWORK = 'NameResolutionError|NewConnectionError|ConnectTimeout|ProxyError'
_DEVICES = """
import jax
from experiments.runtime import accelerators
accelerators.check_plugins()
problem = accelerators.unused_gpu()
if problem: raise SystemExit(problem)
devices = jax.devices()
print(f'{len(devices)} × {devices[0].device_kind} ({devices[0].platform})')
"""


def install() -> None:
    """Installs the project if necessary, and prints the devices that JAX finds.

    Raises:
      SystemExit: Names the cause on one line: an old Python, no network, or an unused
        GPU.
    """
    if sys.version_info < _OLDEST_PYTHON:
        version = '.'.join(map(str, sys.version_info[:2]))
        sys.exit(f'python: version {version} is too old. Choose a runtime with 3.11.')
    if not _is_installed('flaxformer-lite'):
        _install()
    devices = _python(_DEVICES)
    if devices.returncode:
        _fail('devices', devices.stderr)
    print('devices:', devices.stdout.splitlines()[-1])


def _install() -> None:
    extras = ['report', 'pretrained']
    pinned = ['numpy']
    accelerator = _accelerator()
    if _jax_will_do(accelerator):
        pinned += ['jax', 'jaxlib']
    elif accelerator:
        extras.append(accelerator)
    pins = [f'{x}=={metadata.version(x)}' for x in pinned if _is_installed(x)]
    before = _loaded_versions()
    command = [sys.executable, '-m', 'pip', 'install', '--quiet', *pins]
    done = _run(*command, '--editable', f'{ROOT}[{",".join(extras)}]')
    if done.returncode:
        _fail('pip', done.stderr)
    changed = before - _loaded_versions()
    if changed:
        names = ', '.join(sorted(name for name, _ in changed))
        print(f'{names} changed, so the kernel restarts. Run this cell again.')
        _restart_kernel()


def _accelerator() -> str | None:
    """Returns the extra for this machine's accelerator."""
    if glob.glob('/dev/accel*') or glob.glob('/dev/vfio/[0-9]*'):
        return 'tpu'
    if not shutil.which('nvidia-smi'):
        return None
    for cuda in ('cuda12', 'cuda13'):
        if _is_installed(f'jax-{cuda}-plugin'):
            return cuda  # a second plugin would break the first
    query = _run('nvidia-smi', '--query-gpu=driver_version', '--format=csv,noheader')
    driver = re.match('[0-9]+', query.stdout)
    is_new = driver is not None and int(driver[0]) >= _CUDA_13_DRIVER
    return 'cuda13' if is_new else 'cuda12'


def _jax_will_do(accelerator: str | None) -> bool:
    """Returns whether the runtime's JAX is new enough and uses the accelerator."""
    code = 'import flaxformer_lite, jax; print(jax.default_backend())'
    found = _python(code)
    return not found.returncode and (
        not accelerator or found.stdout.split()[-1] != 'cpu'
    )


def _is_installed(name: str) -> bool:
    return any(metadata.distributions(name=name))


def _loaded_versions() -> set[tuple[str, str]]:
    """Returns name and version of each distribution that this process has imported."""
    return {
        (name, metadata.version(name))
        for module, names in metadata.packages_distributions().items()
        if module in sys.modules
        for name in names
    }


def _python(code: str) -> subprocess.CompletedProcess[str]:
    # In another process: a TPU serves only one, and JAX reserves a GPU's memory.
    return _run(sys.executable, '-c', code)


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def _fail(what: str, stderr: str) -> NoReturn:
    reason = stderr.strip().splitlines()[-1]
    if re.search(_NO_NETWORK, stderr):
        reason = "no network. Turn on internet access in the notebook's settings."
    sys.exit(f'{what}: {reason}')


def _restart_kernel() -> None:
    """Ends this process, which Jupyter and Colab start again."""
    sys.stdout.flush()
    time.sleep(1)  # for the line above to be sent
    os.kill(os.getpid(), signal.SIGKILL)
