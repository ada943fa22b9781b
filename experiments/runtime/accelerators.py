"""Checks that JAX can use the accelerators of this machine."""

import re
from importlib import metadata
from pathlib import Path

from experiments.errors import UserError, warn

_DRIVER = Path('/proc/driver/nvidia/version')
_DEVICES = Path('/dev')
_CUDA_13_DRIVER = 580  # the oldest driver for CUDA 13


def check() -> None:
    """Checks JAX's CUDA plugins, and warns of an unused GPU."""
    check_plugins()
    problem = unused_gpu()
    if problem:
        warn(problem)


def check_plugins() -> None:
    """Raises UserError if the plugins of two CUDA versions are installed.

    JAX loads plugins in arbitrary order, and only the first one works.
    """
    plugins = _plugins()
    if len(plugins) < 2:
        return
    jaxlib = metadata.version('jaxlib')
    fitting = [cuda for cuda, version in plugins.items() if version == jaxlib]
    required = fitting[0] if len(fitting) == 1 else _cuda_extra()
    (removed,) = plugins.keys() - {required}
    raise UserError(
        'jax: the plugins of CUDA 12 and CUDA 13 are both installed. Uninstall one: '
        f'pip uninstall jax-{removed}-plugin jax-{removed}-pjrt'
    )


def unused_gpu() -> str | None:
    """Returns why JAX does not use this machine's NVIDIA GPU, with a fix.

    Returns None also if `JAX_PLATFORMS` is set. Call `check_plugins` first.
    """
    import jax

    # JAX adds the attributes of `config` when it is imported.
    chosen = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]
    if chosen or not any(_DEVICES.glob('nvidia[0-9]*')):
        return None
    if jax.default_backend() != 'cpu':
        return None
    jaxlib = metadata.version('jaxlib')
    plugins = _plugins()
    if not plugins:
        return (
            'jax: this machine has a GPU, but no CUDA plugin is installed. '
            f'Install one: pip install -U "jax[{_cuda_extra()}]=={jaxlib}"'
        )
    ((cuda, version),) = plugins.items()
    if version != jaxlib:
        return (
            f'jax: the {cuda} plugin has version {version}, jaxlib {jaxlib}. '
            f'Install equal versions: pip install -U "jax[{cuda}]=={jaxlib}"'
        )
    return (
        f'jax: the {cuda} plugin cannot use the GPU. Read the warnings of JAX, or set '
        'JAX_PLATFORMS=cpu to use the CPU'
    )


def _plugins() -> dict[str, str]:
    found = {}
    for cuda in ('cuda12', 'cuda13'):
        try:
            found[cuda] = metadata.version(f'jax-{cuda}-plugin')
        except metadata.PackageNotFoundError:
            continue
    return found


def _cuda_extra() -> str:
    driver = _DRIVER.read_text('utf-8') if _DRIVER.exists() else ''
    version = re.search(r' (\d+)\.\d+', driver)
    is_new = version is not None and int(version[1]) >= _CUDA_13_DRIVER
    return 'cuda13' if is_new else 'cuda12'
