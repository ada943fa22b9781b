"""Fixtures of tests that use the runner in this process."""

import pytest
from ml_collections import ConfigDict

from experiments.command_line.command import silence_orbax


@pytest.fixture(scope='session', autouse=True)
def silent_orbax():
    silence_orbax()


@pytest.fixture(scope='session', autouse=True)
def no_default_is_written():
    """Stops absl from formatting each default as YAML, half of the parsing time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigDict, '__str__', lambda config: 'a config')
        yield
