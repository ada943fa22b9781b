"""Settings that must precede the start of JAX, and shared fixtures."""

import gc
import os
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
# Implicit broadcasting over new axes is more often a mistake than intended.
os.environ['JAX_NUMPY_RANK_PROMOTION'] = 'raise'
# By default, JAX multiplies float32 in TF32 on a GPU, with a 10-bit fraction.
os.environ['JAX_DEFAULT_MATMUL_PRECISION'] = 'highest'
# Programs need no Python locations of their operations.
os.environ['JAX_TRACEBACK_IN_LOCATIONS_LIMIT'] = '0'
# Programs run for milliseconds here, so most optimizations cost more than they save.
flags = [
    '--xla_force_host_platform_device_count=4',
    '--xla_backend_optimization_level=0',
    # Compiling a small program in 32 parts takes a fifth longer than as a whole.
    '--xla_cpu_parallel_codegen_split_count=1',
]
# XLA aborts at unknown flags, so they depend on the version.
if version('jaxlib').startswith('0.10.'):
    # Halves the remaining time of compilation.
    flags.append('--xla_cpu_use_fusion_emitters=false')
elif version('jaxlib').startswith('0.12.'):
    # Saves up to a third of compilation. This version always uses fusion emitters.
    flags.append('--xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_COMPILE')
os.environ['XLA_FLAGS'] = ' '.join([os.environ.get('XLA_FLAGS', ''), *flags])
# Several devices on few cores deadlock unless there are spare threads.
os.environ['NPROC'] = '32'
# Without bytecode files, each process compiles a thousand modules again, which takes
# seconds. Processes and workers share a temporary folder of bytecode.
if os.environ.pop('PYTHONDONTWRITEBYTECODE', None):
    bytecode = tempfile.TemporaryDirectory(
        prefix='bytecode_', ignore_cleanup_errors=True
    )
    os.environ['PYTHONPYCACHEPREFIX'] = bytecode.name


def pytest_collection_finish():
    """Excludes imported modules from garbage collection, since they are never freed."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


@pytest.fixture(scope='module')
def cache(tmp_path_factory):
    """Shares one compilation cache among all tests."""
    base = tmp_path_factory.getbasetemp()
    if 'PYTEST_XDIST_WORKER' in os.environ:
        base = base.parent  # the workers share it
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('FLAXFORMER_LITE_CACHE', str(base / 'cache'))
        reset_cache()
        yield


@pytest.fixture
def command(monkeypatch, capsys):
    """Returns a function that runs a command in this process, and returns its output.

    It takes the command's module and arguments. Errors of the input are `UserError`s.
    """

    def run(module, *arguments):
        capsys.readouterr()
        argv = [module.__name__, *map(str, arguments)]
        monkeypatch.setattr(sys, 'argv', argv)
        module.main()
        return capsys.readouterr()

    return run


@pytest.fixture
def nobody(tmp_path):
    """Returns a directory of a user who is not root, whose permissions are enforced."""
    if os.name != 'posix':
        pytest.skip('needs POSIX permissions')
    if os.geteuid() != 0:
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp())  # other users can't read pytest's
    os.chown(path, 65534, 65534)
    # An earlier test may have turned on the compilation cache in a folder of root.
    enable_cache(on=False)
    os.seteuid(65534)
    try:
        yield path
    finally:
        os.seteuid(0)
        enable_cache(on=True)
        shutil.rmtree(path)


def enable_cache(on):
    import jax

    jax.config.update('jax_enable_compilation_cache', on)
    reset_cache()


def reset_cache():
    """Lets JAX look for a cache again, which it does only at its first program."""
    from jax.experimental.compilation_cache import compilation_cache

    compilation_cache.reset_cache()


@pytest.fixture(scope='module')
def browser():
    """Returns Chromium, or skips the module if it is not installed."""
    playwright = pytest.importorskip('playwright.sync_api')
    from docs import shots

    with playwright.sync_playwright() as started:
        chromium = started.chromium
        found = chromium.launch(executable_path=shots.CHROMIUM, args=shots.FLAGS)
        yield found
        found.close()


@pytest.fixture(scope='module', autouse=True)
def free_programs_after_each_module():
    """Frees compiled programs, which take gigabytes and slow garbage collection."""
    yield
    if 'jax' in sys.modules:
        sys.modules['jax'].clear_caches()


@pytest.fixture(autouse=True)
def forget_user_modules_after_each_test():
    """Forgets user modules, since folders may hold different modules of one name."""
    yield
    for name in [name for name in sys.modules if name.startswith('my_')]:
        del sys.modules[name]
