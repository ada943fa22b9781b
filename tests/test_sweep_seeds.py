"""Which of a sweep's runs a worker hands to one program."""

import contextlib
import json
from pathlib import Path

import pytest

from configs import wmt_small
from experiments.config import load, schema
from experiments.runs import lock
from experiments.sweeps import worker
from experiments.sweeps.schema import Cell
from experiments.sweeps.worker import Worker

SEEDS = range(10)
RESULT = {
    'step': 1,
    'parameters': 1,
    'train_seconds': 1,
    'tokens_per_second': 1,
    'evaluations': {},
}


def cells(folder, **changes):
    config = wmt_small.get_config()
    config.update(changes)
    config = load.from_config_dict(config)
    return [
        Cell(arm, seed, {}, folder / f'{arm}{seed}', schema.with_seed(config, seed))
        for arm in ('a', 'b')
        for seed in SEEDS
    ]


@pytest.fixture
def teams(monkeypatch):
    """The runs that were handed over; each has its result at once."""
    found = []

    def make(team, stop, memo):
        for cell in team:
            cell.path.mkdir(parents=True)
            (cell.path / 'result.json').write_text(json.dumps(RESULT))
        found.append([f'{cell.arm}{cell.seed}' for cell in team])
        return ''

    monkeypatch.setattr(worker, '_run', make)
    monkeypatch.setattr('jax.default_backend', lambda: 'gpu')
    return found


class NoStop:
    def check(self):
        pass


def work(found, index=0):
    Worker(found, index, 2, began=0.0, folder=Path()).work(NoStop())


def test_an_accelerator_trains_seeds_of_an_arm_together(teams, tmp_path):
    work(cells(tmp_path))
    assert [len(team) for team in teams] == [8, 2, 8, 2]
    assert all(len({name[0] for name in team}) == 1 for team in teams)
    names = [name for team in teams for name in team]
    assert sorted(names) == sorted(f'{arm}{seed}' for arm in 'ab' for seed in SEEDS)


def test_a_seed_that_another_worker_begins_meanwhile_is_left_to_it(
    teams, tmp_path, monkeypatch
):
    found = cells(tmp_path)[:8]
    make = worker._run
    with contextlib.ExitStack() as other:

        def begun_by_another(team, stop, memo):
            if len(team) == 8:
                # It takes the second of them before this worker has locked any.
                other.enter_context(lock.locked(team[1].path, optional=False))
                raise lock.InUse('in use')
            return make(team, stop, memo)

        monkeypatch.setattr(worker, '_run', begun_by_another)
        work(found)
    assert teams == [['a0', 'a2', 'a3', 'a4', 'a5', 'a6', 'a7']]


def test_what_has_ended_is_in_no_team(teams, tmp_path):
    found = cells(tmp_path)
    ended = found[3].path
    ended.mkdir()
    (ended / 'result.json').write_text(json.dumps(RESULT))
    work(found)
    assert teams[0] == ['a0', 'a1', 'a2', 'a4', 'a5', 'a6', 'a7', 'a8']
    assert teams[1] == ['a9']


@pytest.mark.parametrize(
    'changes',
    [{'batch': {'packed': False}}, {'train': {'epochs': 2}}],
)
def test_what_one_program_cannot_train_is_trained_alone(teams, tmp_path, changes):
    work(cells(tmp_path, **changes))
    assert {len(team) for team in teams} == {1}


def test_a_cpu_trains_seed_by_seed(teams, tmp_path, monkeypatch):
    monkeypatch.setattr('jax.default_backend', lambda: 'cpu')
    work(cells(tmp_path))
    assert {len(team) for team in teams} == {1}
