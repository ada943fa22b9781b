"""The command line: a config file, overrides `--config.a.b=value`, one-line errors."""

import argparse
import io
import os
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from absl import flags
from ml_collections import config_dict, config_flags

from experiments.command_line import stopping, usage
from experiments.config import derived, typed, upgrade
from experiments.config.flat import flatten
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError, line
from flaxformer_lite.ranges import nearest

PROJECT = Path(__file__).resolve().parents[2]
FOLDERS = (PROJECT, PROJECT / 'configs')  # where configs are looked for
CONFIG_HELP = (
    'file, such as configs/wmt_small.py, or the config.json of a run; '
    '--config.model.num_heads=8 changes one of its fields'
)
OVERRIDE = re.compile(r'--?(?:no)?config\.([^=]*)')
_ADDRESS = re.compile('[A-Za-z][A-Za-z0-9+.-]*://')  # gs://bucket, s3://bucket


class Settings(NamedTuple):
    """What `--config` and its overrides give.

    Attributes:
      config: with the overrides in it.
      name: the config file's, without .py; of a run's config.json, the run's.
      overrides: what differs from the file: {'model.num_heads': 8}.
      file: every field as the file has it.
    """

    config: ExperimentConfig
    name: str
    overrides: dict[str, Any]
    file: dict[str, Any]

    def with_seed(self, seed: int) -> 'Settings':
        """Those with another `train.seed`."""
        overrides = {**self.overrides, 'train.seed': seed}
        if seed == self.file['train.seed']:
            del overrides['train.seed']
        config = derived.with_seed(self.config, seed)
        return Settings(config, self.name, overrides, self.file)


def directory(text: str) -> Path:
    """The type of a flag that names one: an empty name is not the one here."""
    if not text:
        raise argparse.ArgumentTypeError('is empty; to name the directory here, give .')
    if _ADDRESS.match(text):
        # As a path, gs://bucket would be a folder here that is called `gs:`.
        raise argparse.ArgumentTypeError(
            f'{text} is an address, not the path of a directory: locks, renaming and '
            'syncing need a disk, so give a path on one that is mounted, and copy what '
            'is there to a bucket'
        )
    try:
        return Path(text).expanduser()  # a shell leaves the ~ of --workdir=~/x
    except RuntimeError as error:
        reason = str(error).rstrip('.')
        raise argparse.ArgumentTypeError(
            f'{text}: {reason}; give the whole path'
        ) from None


class Once(argparse._StoreAction):
    """Refuses a flag that is given twice, of which one would be dropped."""

    _seen: argparse.Namespace | None = None

    def __call__(self, parser, namespace, values, option_string=None):
        if self._seen is namespace:
            raise argparse.ArgumentError(self, 'is given twice')
        self._seen = namespace
        super().__call__(parser, namespace, values, option_string)


class Parser(argparse.ArgumentParser):
    """argparse that takes flags by their whole name; mistakes are UserErrors."""

    def __init__(self, description: str | None):
        super().__init__(
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for name in (None, 'store'):
            self.register('action', name, Once)
        self.register('type', Path, directory)

    def error(self, message: str) -> NoReturn:
        raise UserError(f'{message} (--help lists the flags)')


def main(run: Callable[[], None]) -> None:
    """Runs a command; a UserError is one line on stderr and exit status 2.

    A signal ends the process (`stopping`).
    """
    stopping.watch()
    _use_utf8()
    try:
        run()
    except UserError as error:
        print('error:', line(error), file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        # `| head` has seen enough; the exit's own flush shall find no pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _use_utf8() -> None:
    """Makes the streams UTF-8, whatever the locale."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding='utf-8', errors='strict')
    for stream in (sys.stdout, sys.stderr):
        # A file's name may hold bytes that are not text: they are shown escaped.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding='utf-8', errors='backslashreplace')


def parse(parser: Parser, argv: Sequence[str] | None = None) -> tuple[Any, Settings]:
    """The parser's own flags, and the settings that `--config` and its overrides give.

    A config's path is looked for from here, then from the project; `.py` may be left
    out, as may fields of the file that are to have the schema's defaults. It may be the
    config.json of a run.

    Raises:
      UserError: an unknown flag or field, a value that cannot be, or no such config.
    """
    parser.add_argument('--config', required=True, help=CONFIG_HELP)
    argv = sys.argv[1:] if argv is None else argv
    if {'-h', '--help'} & set(argv):
        parser.epilog = _help(argv)
    args, overrides = parser.parse_known_args(argv)
    for flag in overrides:
        if re.match('--?[a-zA-Z]', flag) and not OVERRIDE.match(flag):
            _refuse(flag.split('=')[0], [f'--{name}' for name in vars(args)])
    return args, settings(args.config, overrides)


def settings(path: str, overrides: Sequence[str]) -> Settings:
    """The settings of a config file and of overrides, `['--config.a.b=value', …]`.

    Raises:
      UserError: an unknown field, a value that cannot be, or no such config.
    """
    file = find(path)
    config = _load(file)
    before = flatten(config.to_dict())
    _override(config, overrides)
    after = flatten(config.to_dict())
    changed = {k: v for k, v in after.items() if v != before[k]}
    typed_config = typed.from_dict(config.to_dict())
    return Settings(typed_config, _name(file), changed, before)


def _name(file: Path) -> str:
    return file.absolute().parent.name if _is_of_run(file) else file.stem


def _is_of_run(file: Path) -> bool:
    """Whether it is the config.json of a run's directory, and no Python file."""
    return file.suffix == '.json'


def _help(argv: Sequence[str]) -> str:
    """What `--help` says of the config that is named, or else of the paper's."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument('--config', nargs='?')
    file = find(parser.parse_known_args(argv)[0].config or 'wmt_base')
    config = typed.from_dict(_load(file).to_dict())
    return usage.text(_name(file), config, available())


def _refuse(flag: str, known: list[str]) -> NoReturn:
    hint = nearest(flag.split('.')[0], known)
    raise UserError(f'there is no flag {flag}{hint}')


def available(folder: Path = FOLDERS[-1]) -> list[str]:
    """The names of the project's configs."""
    return sorted(file.stem for file in folder.glob('[a-z]*.py'))


def find(path: str, folders: Sequence[Path] = FOLDERS) -> Path:
    """The file of a path that is given with or without `.py`.

    Args:
      folders: where it is looked for, after the working directory.

    Raises:
      UserError: there is no such file.
    """
    for place in (Path(), *folders):
        for file in (place / path, place / f'{path}.py'):
            if _is_file(file, path):
                return file
    there = ', '.join(available(folders[-1]))
    raise UserError(f'--config={path}: no such file; the project has {there}')


def _is_file(file: Path, path: str) -> bool:
    try:
        return file.is_file()
    except OSError as error:  # a name too long, or a folder without permission
        raise UserError(f'--config={path}: {error.strerror}') from None


def evaluate(file: Path) -> Any:
    """What the function get_config() of a file returns; None where it has none.

    Raises:
      UserError: the file fails.
    """
    try:
        return runpy.run_path(str(file)).get('get_config', lambda: None)()
    except Exception as error:
        raise UserError(
            f'{_where(error, file)}: {type(error).__name__}: {error}'
        ) from error


def _load(file: Path) -> config_dict.ConfigDict:
    if _is_of_run(file):
        config = config_dict.ConfigDict(upgrade.read(file))
    else:
        config = evaluate(file)
    if not isinstance(config, config_dict.ConfigDict):
        raise UserError(
            f'{file}: give it a function get_config() that returns a ConfigDict'
        )
    try:
        typed.fill(config)
    except UserError as error:
        raise UserError(f'{file}: {error}') from None
    return config.lock()


def _where(error: Exception, file: Path) -> str:
    """The config's own line that failed, also where a library raised the error."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [
        f'{file}:{frame.lineno}' for frame in frames if frame.filename == str(file)
    ]
    return lines[-1] if lines else str(file)


def _override(config: config_dict.ConfigDict, overrides: Sequence[str]) -> None:
    """Puts `['--config.a.b=value', …]` in the config, each as its field's type."""
    fields = flatten(config.to_dict())
    for flag, key in [(m[0], m[1]) for m in map(OVERRIDE.match, overrides) if m]:
        if key not in fields:
            raise UserError(f'the config has no field {key!r}{typed.hint(key)}')
        if 'noconfig' in flag and not isinstance(fields[key], bool):
            raise UserError(f'{flag}: {key} is no switch; give --config.{key}=value')
    values, argv = flags.FlagValues(), ['', *overrides]
    try:
        config_flags.DEFINE_config_dict(
            'config', config, flag_values=values, sys_argv=argv
        )
        stray = values(argv)[1:]
    except (flags.Error, ValueError) as error:
        raise UserError(str(error).removeprefix('flag ')) from error
    if stray:
        raise UserError(f'{stray[0]!r} belongs to no flag')
