"""Shares the fixtures of tests that use the runner."""

from runner_fixtures import no_default_is_written, silent_orbax  # noqa: F401
