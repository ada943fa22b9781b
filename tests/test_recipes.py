"""The recipes of docs/guides/many_devices.md for clusters start processes of one run.

What starts them is a stub, which gives them what the real one does; jax's own detection
of clusters says what it makes of that.
"""

import importlib.util
import os
import subprocess
from typing import NamedTuple

import pages
import pytest
from jax._src.clusters import cloud_tpu_cluster, cluster

from experiments.command_line import flags
from experiments.config import check
from experiments.runtime import processes as group

RECIPES = dict(
    zip(
        ('slurm', 'tpu', 'kubernetes', 'laptop'),
        [
            code
            for name, code in pages.FENCE.findall(
                pages.text('docs/guides/many_devices.md')
            )
            if name == 'sh'
        ],
        strict=True,
    )
)
# Python tells its environment and its arguments, and does nothing.
PYTHON = r"""
python() { { env -0; printf '\0'; printf '%s\0' "$@" ''; } >&3; }
"""
SRUN = """
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
    SLURM_JOB_ID=7 SLURM_STEP_NODELIST="node[1-$nodes]" SLURM_NTASKS=$all \\
      SLURM_STEP_NUM_TASKS=$all SLURM_PROCID=$i SLURM_LOCALID=$((i % each)) "$@"
  done
}
"""
GCLOUD = """
gcloud() {
  [[ "${*:1:4}" == 'compute tpus tpu-vm ssh' && $6 == --worker=all ]]
  for ((i = 0; i < 4; i++)); do
    (export WORKER=$i; eval "${7#--command=}")
  done
}
"""


class Process(NamedTuple):
    environ: dict[str, str]
    argv: list[str]


def started(recipe, stub='', **variables):
    """The processes that a shell starts."""
    read, write = os.pipe()
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


def check_command(argv):
    """Checks that `experiments.run` takes it: the flags of one process apart."""
    dash_m, module, *rest = argv
    assert (dash_m, module) == ('-m', 'experiments.run')
    parser = flags.Parser('test')
    parser.add_argument('--workdir')
    group.add_flags(parser)
    _, settings = flags.parse(parser, rest)
    check.check_config(settings.config)


def detected(monkeypatch, environ):
    """What is found in this environment: coordinator, number, index."""
    with monkeypatch.context() as patch:
        patch.setattr(os, 'environ', environ)
        return group._cluster()[:3]


def test_slurm_starts_a_process_for_each_gpu(monkeypatch):
    processes = started('slurm', SRUN)
    found = [detected(monkeypatch, environ) for environ, _ in processes]
    assert [(number, i) for _, number, i in found] == [(16, i) for i in range(16)]
    assert len({coordinator for coordinator, _, _ in found}) == 1
    check_command(processes[0].argv)


def test_every_host_of_a_tpu_pod_asks_its_metadata(monkeypatch):
    processes = started('tpu', GCLOUD)
    assert len(processes) == 4
    for module in (cluster, cloud_tpu_cluster):
        monkeypatch.setattr(module, 'running_in_cloud_tpu_vm', True)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        'find_spec',
        lambda name, *package: name == 'libtpu' or find_spec(name, *package),
    )
    for i, (environ, _) in enumerate(processes):
        metadata = {
            'agent-worker-number': environ['WORKER'],
            'worker-network-endpoints': 'a:1:127.0.0.1,b:2:127.0.0.2,c:3:c,d:4:d',
            'tpu-env': "ZONE: 'z'",
        }
        monkeypatch.setattr(
            cloud_tpu_cluster, 'get_metadata', lambda key, m=metadata: (m[key], 200)
        )
        assert detected(monkeypatch, environ)[1:] == (4, i)
    check_command(processes[0].argv)


@pytest.mark.parametrize(
    ('recipe', 'number', 'coordinator'),
    [('kubernetes', 8, 'big-0.train:1234'), ('laptop', 2, '127.0.0.1:1234')],
)
def test_flags_give_each_process_its_place(recipe, number, coordinator):
    for i in range(number):
        (process,) = started(recipe, JOB_NAME='big', JOB_COMPLETION_INDEX=str(i))
        argv = process.argv
        if recipe == 'laptop':
            assert '--process=0' in argv
            argv = [x.replace('--process=0', f'--process={i}') for x in argv]
        parser = flags.Parser('test')
        group.add_flags(parser)
        args, _ = parser.parse_known_args(argv)
        assert group._flags(args)[:3] == (coordinator, number, i)
    check_command(argv)
