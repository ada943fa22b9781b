"""Flags, and overrides of a config file: `--config.a.b=value`."""

import argparse
import contextlib
import importlib.util
import io
import os
import re
import runpy
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from absl import flags
from ml_collections import config_dict, config_flags

from experiments import registries, storage
from experiments.command_line import console
from experiments.config import load, schema, user_modules
from experiments.config.load import flatten
from experiments.errors import (
    UserError,
    component_error,
    line,
    prefix_errors,
    printable,
)
from flaxformer_lite.config import variants
from flaxformer_lite.config.schema import DTYPES
from flaxformer_lite.validation import did_you_mean, quote

PROJECT = Path(__file__).resolve().parents[2]
FOLDERS = (PROJECT, PROJECT / 'configs')  # searched for configs
CONFIG_HELP = (
    'config file, such as configs/wmt_small.py, or config.json of a run; '
    'override fields as in --config.model.num_heads=8'
)
DECODE_HELP = "strategy, such as 'beam(beams=8)'; default: evaluation.decode"
# Packages that reports need.
REPORT_PACKAGES = ('scipy', 'altair', 'vl_convert', 'jinja2')
OVERRIDE = re.compile(r'--?(?:no)?config\.([^=]*)')


class ConfigFlags(NamedTuple):
    """The result of `--config` and its overrides.

    Attributes:
      name: The config file's name without .py, or the run's for its config.json.
      overrides: Such as {'model.num_heads': 8}.
      defaults: The values of the file itself, flat.
    """

    config: schema.ExperimentConfig
    name: str
    overrides: dict[str, Any]
    defaults: dict[str, Any]


def directory(text: str) -> Path:
    """Parses the flag of a directory. An empty text isn't the current directory."""
    if not text:
        raise argparse.ArgumentTypeError('is empty. Pass . for the current directory')
    if '://' in text:
        # As a path, gs://bucket would be a local folder named `gs:`.
        raise argparse.ArgumentTypeError(
            f'{text} is a URL. Pass a directory on a mounted disk.'
        )
    return Path(os.path.expanduser(text))  # a shell keeps the ~ of --workdir=~/x


class Parser(argparse.ArgumentParser):
    """An argparse parser without abbreviated flags. Raises UserError for mistakes.

    Attributes:
      overrides: Flags that `settings` reads, such as `--config.model.d_ff`.
    """

    overrides: Sequence[str] = ()
    _completes = False

    def __init__(self, description: str | None):
        super().__init__(
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.register('type', Path, directory)
        self.color = False  # Python 3.14 would write escape sequences

    def error(self, message: str) -> NoReturn:
        # The description of a command contains an example.
        examples = re.findall('python -m .*', self.description or '')
        text = ', as in '.join([message, *examples[:1]])
        raise UserError(f'{text} (--help lists the flags)')

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses like argparse, but reports mistyped flags before missing ones."""
        if '_ARGCOMPLETE' in os.environ and not self._completes:
            self._complete()
        argv = sys.argv[1:] if args is None else args
        known = [*self._option_string_actions, *self.overrides]
        for text in argv:
            flag = text.split('=')[0]
            if flag in known or OVERRIDE.match(flag):
                continue
            if re.fullmatch('--?[a-zA-Z][^ ]*', flag):
                raise UserError(f'unknown flag {flag}{did_you_mean(flag, known)}')
        return super().parse_known_args(argv, namespace)

    def _complete(self) -> NoReturn:
        import argcomplete

        self._completes = True  # argcomplete parses the words before
        for flag in self.overrides:
            field = flag.removeprefix('--config.')
            folder = registries.folder(field)
            self.add_argument(flag, choices=folder and folder.names())
        argcomplete.autocomplete(self)
        sys.exit()


def main(run: Callable[[], None]) -> None:
    """Runs a command; a UserError is one line on stderr and exit status 2.

    An error in a user's component is one line with its traceback, and exit status 1.
    """
    _use_utf8()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Only print and rich use it.
        sys.stdout = console.SafeOutput(_Output(sys.stdout))  # pyright: ignore
    try:
        try:
            run()
        finally:
            if sys.stdout is not None:  # None if the shell has closed it
                sys.stdout.flush()
    except UserError as error:
        print('error:', line(error), file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        sys.exit(1)
    except (Exception, SystemExit) as error:
        found = component_error(error)
        if found is None:
            raise
        message, trace = found
        print(f'error: {message}\n{printable(trace)}', end='', file=sys.stderr)
        sys.exit(1 if trace else 2)


class _Output(io.TextIOWrapper):
    """Standard output that raises UserError if it can't be written.

    After an error it discards its output, so that the flush at exit succeeds.
    """

    def __init__(self, stream: io.TextIOWrapper):
        super().__init__(
            stream.buffer,
            stream.encoding,
            stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )

    def write(self, text: str, /) -> int:
        with self._errors():
            return super().write(text)

    def flush(self) -> None:
        with self._errors():
            super().flush()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if isinstance(error, BrokenPipeError):
                raise
            raise UserError(
                f'cannot write standard output: {error.strerror}'
            ) from error


def add_trust_code(parser: Parser) -> None:
    parser.add_argument(
        '--trust_code',
        action='store_true',
        help='run modules of a package that contains the run, and commands of its '
        'metrics',
    )


def add_step(parser: Parser) -> None:
    parser.add_argument(
        '--step',
        type=whole_number,
        help='use the checkpoint of this step; default: the average that the config '
        'asks for',
    )


def add_dtype(parser: Parser) -> None:
    parser.add_argument(
        '--dtype',
        default='',
        choices=DTYPES.words,
        help="dtype of matrix products, such as bfloat16; default: the run's",
    )


def whole_number(text: str, least: int = 0) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(
            f'{text!r} must be a whole number from {least}'
        )
    return int(text)


def _use_utf8() -> None:
    for stream in (sys.stdout, sys.stderr):
        # A file name may contain bytes that aren't text; they are escaped.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding='utf-8', errors='backslashreplace')


def parse(parser: Parser, argv: Sequence[str] | None = None) -> tuple[Any, ConfigFlags]:
    """Parses the parser's own flags, and `--config` with its overrides."""
    parser.add_argument('--config', required=True, help=CONFIG_HELP)
    parser.overrides = [f'--config.{field}' for field in schema.fields()]
    add_trust_code(parser)
    argv = sys.argv[1:] if argv is None else argv
    if {'-h', '--help'} & set(argv):
        parser.epilog = _help(argv)
    args, overrides = parser.parse_known_args(argv)
    return args, settings(args.config, parse_overrides(overrides), args.trust_code)


def settings(
    path: str, overrides: Mapping[str, Any], trust_code: bool = False
) -> ConfigFlags:
    """Returns the settings of a config file with overrides, as in `load.override`."""
    file = find(path)
    config = _load(file)
    stored_values = flatten(config.to_dict())
    if file.suffix == '.json':
        user_modules.check_stored(file.parent, trust_code)
        if 'evaluation.metrics' not in overrides:
            stored = stored_values['evaluation.metrics']
            user_modules.check_commands(stored, file.parent, trust_code)
    load.override(config, overrides)
    found = load.from_dict(config.to_dict())
    changed = {k: v for k, v in found.values().items() if v != stored_values[k]}
    return ConfigFlags(found, _name(file), changed, stored_values)


def _name(file: Path) -> str:
    return storage.run_title(file.parent) if file.suffix == '.json' else file.stem


def _help(argv: Sequence[str]) -> str:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument('--config', nargs='?')
    known, _ = parser.parse_known_args(argv)
    file = find(known.config or 'wmt_base')
    values = flatten(_load(file).to_dict())
    configs = ', '.join(available())
    lines = [textwrap.fill(f'configs: {configs}', 88), '']
    lines.append(f'fields of {_name(file)}:')
    for field, (kind, _, meaning) in schema.fields().items():
        value = schema.display(values[field])
        allowed = schema.allowed(kind)
        lines.append(_row(field, f'{value} · {meaning} [{allowed}]'))
    # Lists the file names of variants. Their arguments are only in their classes, which
    # import JAX.
    lines += [
        '',
        'components; docs/reference/components/ lists their arguments:',
    ]
    of_model = {f'model.{kind}': folder for kind, folder in variants.FOLDERS.items()}
    for kind, folder in (registries.FOLDERS | of_model).items():
        lines.append(_row(kind, ', '.join(folder.names())))
    lines.append('  model.decoder and model.cross accept the same variants')
    return '\n'.join(lines)


def _row(name: str, value: str) -> str:
    return textwrap.fill(
        value,
        88,
        initial_indent=f'  {name}'.ljust(29) + ' ',
        subsequent_indent=' ' * 30,
        break_long_words=False,
        break_on_hyphens=False,
    )


def available(folder: Path = FOLDERS[-1]) -> list[str]:
    return sorted(file.stem for file in folder.glob('[a-z]*.py'))


def find(path: str, folders: Sequence[Path] = FOLDERS) -> Path:
    """Returns the file of a path with or without `.py`.

    For `config.json`, `config.json.py` is not tried: it would be run.
    """
    paths = [path] if path.endswith('.json') else [path, f'{path}.py']
    for folder in (Path(), *folders):
        for file in (folder / name for name in paths):
            if os.path.isfile(file):
                return file
    there = available(folders[-1])
    hint = did_you_mean(Path(path).stem, there) or '.'
    raise UserError(
        f'--config={path}: file not found{hint} Shipped configs: {", ".join(there)}.'
    )


def evaluate(file: Path) -> Any:
    """Returns the result of get_config() in a file, if it is defined.

    A UserError names the last of the file's lines in the traceback.
    """
    try:
        return runpy.run_path(str(file)).get('get_config', lambda: None)()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        where = str(file)
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == str(file):
                where = f'{file}:{frame.lineno}'
        message = f'{where}: {type(error).__name__}: {error}'
        raise UserError(message.removesuffix(': ')) from error


def _load(file: Path) -> config_dict.ConfigDict:
    if file.suffix == '.json':
        config = config_dict.ConfigDict(load.read_stored(file))
    else:
        config = evaluate(file)
    if isinstance(config, dict) and {'arms', 'factors'} & config.keys():
        raise UserError(
            f'{file}: sweep file, not the config of a run. Run it with python -m '
            f'experiments.sweep --config={file}.'
        )
    if not isinstance(config, config_dict.ConfigDict):
        raise UserError(
            f'{file}: no get_config() that returns a ConfigDict. Define it.'
        )
    with prefix_errors(file):
        load.fill(config)
    return config.lock()


def parse_overrides(texts: Sequence[str]) -> dict[str, Any]:
    """Parses `['--config.a.b=value', …]` to `{'a.b': value}`, by the fields' types."""
    load.check_names(m[1] for m in map(OVERRIDE.match, texts) if m)
    config = config_dict.ConfigDict()
    load.fill(config)
    values = flags.FlagValues()
    argv = ['', *texts]
    try:
        config_flags.DEFINE_config_dict(
            'config', config, flag_values=values, sys_argv=argv
        )
        unexpected = values(argv)[1:]
    except flags.IllegalFlagValueError as error:
        # Remove Python's own words: "invalid literal for int() with base 10".
        text = str(error).removesuffix(f': {error.__context__}')
        field, _, value = text.removeprefix('flag --config.').partition('=')
        allowed = schema.allowed(schema.fields()[field].kind)
        raise UserError(f'{field} must be {allowed}, not {quote(value)}') from error
    except (flags.Error, ValueError) as error:
        raise UserError(str(error).removeprefix('flag ')) from error
    if unexpected:
        raise UserError(
            f'unexpected argument {unexpected[0]!r}. Write values as --flag=value.'
        )
    return config_flags.get_override_values(values['config'])


def require_packages(
    what: str, names: Sequence[str], extra: str, instead: str = ''
) -> None:
    """Raises UserError if packages of an extra aren't installed.

    Args:
      what: What needs them, such as a flag.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f'{what} needs {", ".join(missing)}: pip install -e ".[{extra}]"'
            + (f'; {instead}' if instead else '')
        )
