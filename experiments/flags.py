"""The command line: a config file, its overrides `--config.a.b=value`, and errors of one line."""

import argparse
import difflib
import os
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from absl import flags
from ml_collections import config_dict, config_flags

from experiments import utf8
from experiments.errors import UserError
from experiments.workdir import flatten

PROJECT = Path(__file__).resolve().parent.parent
CONFIG_HELP = (
    'file, such as configs/wmt_small.py; --config.model.num_heads=8 changes one of its '
    'fields'
)
OVERRIDE = re.compile(r'--?(?:no)?config\.([^=]*)')


class Settings(NamedTuple):
    config: config_dict.ConfigDict  # locked, with the overrides in it
    name: str  # the config file's, without .py
    overrides: dict[str, Any]  # what differs from the file: {'model.num_heads': 8}


class Parser(argparse.ArgumentParser):
    """argparse that takes flags by their whole name only and reports mistakes as UserErrors."""

    def __init__(self, description: str | None):
        super().__init__(
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        raise UserError(f'{message} (--help lists the flags)')


def main(run: Callable[[], None]) -> None:
    """Runs a command; what the user can mend is one line on stderr and exit status 2."""
    utf8.use(run)
    try:
        run()
    except UserError as error:
        print('error:', ' '.join(str(error).split('\n')), file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)  # as the shell says it
    except (
        BrokenPipeError
    ):  # `| head` has seen enough; the exit's own flush shall find no pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def parse(parser: Parser, argv: Sequence[str] | None = None) -> tuple[Any, Settings]:
    """The parser's own flags, and the settings that `--config` and its overrides give.

    A config's path is looked for from here, then from the project; `.py` may be left out.

    Raises:
      UserError: an unknown flag or field, a value of the wrong type, or no such config.
    """
    parser.add_argument('--config', required=True, help=CONFIG_HELP)
    args, overrides = parser.parse_known_args(argv)
    unknown = [
        o for o in overrides if re.match('--?[a-z]', o) and not OVERRIDE.match(o)
    ]
    if unknown:
        flag = unknown[0].split('=')[0]
        raise UserError(
            f'there is no flag {flag}{_nearest(flag, [f"--{a}" for a in vars(args)])}'
        )
    file = _find(args.config)
    config = _load(file)
    before = flatten(config.to_dict())
    _override(config, overrides)
    after = flatten(config.to_dict())
    return args, Settings(
        config, file.stem, {k: v for k, v in after.items() if v != before[k]}
    )


def _find(path: str) -> Path:
    places = [Path(path), PROJECT / path, PROJECT / 'configs' / path]
    for place in places:
        for file in (place, place.with_name(place.name + '.py')):
            if file.is_file():
                return file
    there = ', '.join(sorted(p.stem for p in (PROJECT / 'configs').glob('[a-z]*.py')))
    raise UserError(f'--config={path}: no such file; the project has {there}')


def _load(file: Path) -> config_dict.ConfigDict:
    try:
        config = runpy.run_path(str(file)).get('get_config', lambda: None)()
    except Exception as error:
        raise UserError(
            f'{_where(error, file)}: {type(error).__name__}: {error}'
        ) from error
    if not isinstance(config, config_dict.ConfigDict):
        raise UserError(
            f'{file}: give it a function get_config() that returns a ConfigDict'
        )
    return config.lock()


def _where(error: Exception, file: Path) -> str:
    """The config's own line that failed, also where the error came from a library it called."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [
        f'{file}:{frame.lineno}' for frame in frames if frame.filename == str(file)
    ]
    return lines[-1] if lines else str(file)


def _override(config: config_dict.ConfigDict, overrides: Sequence[str]) -> None:
    """Puts `['--config.a.b=value', …]` in the config, each as its field's type."""
    fields = flatten(config.to_dict())
    for key in [match[1] for match in map(OVERRIDE.match, overrides) if match]:
        if key not in fields:
            raise UserError(f'the config has no field {key!r}{_nearest(key, fields)}')
    values, argv = flags.FlagValues(), ['', *overrides]
    try:
        config_flags.DEFINE_config_dict(
            'config', config, flag_values=values, sys_argv=argv
        )
        stray = values(argv)[1:]
    except flags.Error as error:
        raise UserError(str(error).removeprefix('flag ')) from error
    if stray:
        raise UserError(f'{stray[0]!r} belongs to no flag')


def _nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.3)
    return f'; did you mean {near[0]!r}?' if near else ''
