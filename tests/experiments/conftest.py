"""Shares the fixtures of tests that use the runner."""

import os
import shutil
import sys
import tempfile

import pytest
import small_runs
from runner_fixtures import no_default_is_written, silent_orbax  # noqa: F401

from experiments import storage


@pytest.fixture(scope='session')
def shared_folder(tmp_path_factory):
    """Returns a folder that all workers of a test session share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if 'PYTEST_XDIST_WORKER' in os.environ else base


@pytest.fixture(scope='session')
def short_text(shared_folder):
    """Returns a folder of parallel text with the sets `val` and `news`.

    `news` is the start of `val`, so that the same programs decode both.
    """

    def write(folder):
        small_runs.write_text(folder, val=4)
        for language in ('en', 'de'):
            lines = (folder / f'val.{language}').read_text('utf-8').splitlines(True)
            (folder / f'news.{language}').write_text(''.join(lines[:3]), 'utf-8')

    storage.cache_folder(shared_folder / 'short_text', write)
    return shared_folder / 'short_text'


@pytest.fixture(scope='session')
def trained_run(shared_folder, short_text):
    """Returns a finished run of `small_runs.TRAINED`, trained once. Don't change it."""
    path = shared_folder / 'trained_run'
    with (
        storage.lock(shared_folder / '.trained_run.lock', wait=True),
        pytest.MonkeyPatch.context() as patch,
    ):
        if not (path / 'result.json').exists():
            patch.setenv('FLAXFORMER_LITE_CACHE', str(shared_folder / 'cache'))
            small_runs.train(path, *small_runs.arguments(short_text, path)[2:])
    return path


@pytest.fixture
def run_copy(trained_run, tmp_path):
    """Returns a copy of the trained run, which a test may change."""
    return shutil.copytree(trained_run, tmp_path / 'run')


@pytest.fixture
def unfinished_copy(run_copy):
    """Returns a copy that lacks its result, so that the same command resumes it."""
    (run_copy / 'result.json').unlink()
    return run_copy


@pytest.fixture
def command_on_input(command, monkeypatch):
    """Returns a function that runs a command on text, and returns its output lines."""

    def run(module, text, *flags):
        with tempfile.TemporaryFile() as file:
            file.write(text if isinstance(text, bytes) else text.encode())
            file.seek(0)
            monkeypatch.setattr(sys, 'stdin', file)
            return command(module, *flags).out.split('\n')[:-1]

    return run
