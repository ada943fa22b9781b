"""The recipes of docs/guides/many_devices.md for clusters start processes of one run.

What starts them is a stub, which gives them what the real one does. Slurm's variables
jax's own detection of clusters reads; elsewhere there are flags.
"""

import os
import subprocess
import sys
from typing import NamedTuple

import pages
import pytest
from jax._src.clusters import ClusterEnv

from experiments import run
from experiments.command_line import flags
from experiments.config import check

GUIDE = pages.FENCE.findall(pages.text('docs/guides/many_devices.md'))
NAMES = ('slurm', 'tpu', 'kubernetes', 'laptop')
RECIPES = dict(zip(NAMES, [x for name, x in GUIDE if name == 'sh'], strict=True))
# Python tells its environment and its arguments, and does nothing.
PYTHON = r"""
python() { { env -0; printf '\0'; printf '%s\0' "$@" ''; } >&3; }
"""
STUBS = {
    'slurm': r"""
srun() {
  while [[ $1 == --* ]]; do
    case $1 in
      --nodes=*) local nodes=${1#*=} ;;
      --ntasks-per-node=*) local each=${1#*=} ;;
      --gpus-per-node=*) [[ ${1#*=} == "$each" ]] ;;
      *) return 1 ;;
    esac
    shift
  done
  local all=$((nodes * each))
  for ((i = 0; i < all; i++)); do
    SLURM_JOB_ID=7 SLURM_STEP_NODELIST="node[1-$nodes]" SLURM_NTASKS=$all \
      SLURM_STEP_NUM_TASKS=$all SLURM_PROCID=$i SLURM_LOCALID=$((i % each)) "$@"
  done
}
""",
    'tpu': """
gcloud() {
  [[ "${*:1:4}" == 'compute tpus tpu-vm ssh' && $6 == --worker=all ]]
  for ((i = 0; i < 4; i++)); do eval "${7#--command=}"; done
}
""",
}


class Process(NamedTuple):
    environ: dict[str, str]
    argv: list[str]


def started(recipe, **variables):
    """The processes that a shell starts."""
    read, write = os.pipe()
    stub = STUBS.get(recipe, '')
    script = f'exec 3>&{write}; {PYTHON}{stub}{RECIPES[recipe]}'
    environ = {'PATH': os.environ['PATH'], 'DISK': '/disk', **variables}
    subprocess.run(['bash', '-euc', script], env=environ, pass_fds=[write], check=True)
    os.close(write)
    with os.fdopen(read, encoding='utf-8') as pipe:
        told = pipe.read().split('\0\0')[:-1]
    processes = []
    for environ, argv in zip(told[::2], told[1::2], strict=True):
        variables = dict(line.split('=', 1) for line in environ.split('\0'))
        processes.append(Process(variables, argv.split('\0')))
    return processes


class Parsed(Exception):
    """The command has read its flags."""


def parsed(argv, monkeypatch):
    """What `experiments.run` makes of its flags."""
    dash_m, module, *rest = argv
    assert (dash_m, module) == ('-m', 'experiments.run')
    parse = flags.parse

    def stop(*arguments):
        raise Parsed(*parse(*arguments))

    monkeypatch.setattr(flags, 'parse', stop)
    monkeypatch.setattr(sys, 'argv', ['run', *rest])
    with pytest.raises(Parsed) as caught:
        run.main()
    monkeypatch.undo()
    args, settings = caught.value.args
    check.check_config(settings.config)
    return args


def test_slurm_starts_a_process_for_each_gpu(monkeypatch):
    processes = started('slurm')
    detect = ClusterEnv.auto_detect_unset_distributed_params
    found = []
    for environ, _ in processes:
        with monkeypatch.context() as patch:
            patch.setattr(os, 'environ', environ)
            found.append(detect(*[None] * 5, 1)[:3])
    assert [(number, i) for _, number, i in found] == [(16, i) for i in range(16)]
    assert len({coordinator for coordinator, _, _ in found}) == 1
    assert parsed(processes[0].argv, monkeypatch).coordinator is None


def test_every_host_of_a_tpu_pod_is_started_alike(monkeypatch):
    processes = started('tpu')
    assert len(processes) == 4
    assert parsed(processes[0].argv, monkeypatch).coordinator is None


@pytest.mark.parametrize(
    ('recipe', 'number', 'coordinator'),
    [('kubernetes', 8, 'big-0.train:1234'), ('laptop', 2, '127.0.0.1:1234')],
)
def test_flags_give_each_process_its_place(recipe, number, coordinator, monkeypatch):
    for i in range(number):
        (process,) = started(recipe, JOB_NAME='big', JOB_COMPLETION_INDEX=str(i))
        argv = process.argv
        if recipe == 'laptop':
            argv = [x.replace('--process=0', f'--process={i}') for x in argv]
        args = parsed(argv, monkeypatch)
        assert (args.coordinator, args.processes, args.process) == (
            coordinator,
            number,
            i,
        )
