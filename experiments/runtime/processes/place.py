"""Which of how many processes this is, by flags or by what a cluster says."""

import argparse
import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.errors import UserError

CONNECT_SECONDS = 300  # in which all processes have to be started


class Place(NamedTuple):
    """Which of how many processes this is.

    Attributes:
      coordinator: host and port of the first; None where jax finds all by itself.
    """

    count: int = 1
    index: int = 0
    coordinator: str | None = None


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that `find` reads."""
    group = parser.add_argument_group(
        'several processes', 'found by itself under Slurm, Open MPI and on TPU pods'
    )
    group.add_argument('--coordinator', help='host:port of the first process')
    group.add_argument('--processes', help='how many there are')
    group.add_argument('--process', help='which of them this is, from 0 on')


def find(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Place:
    """The place that flags, or else the cluster's variables, give to this process.

    Raises:
      UserError: a flag is missing, or its value cannot be.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    names = ('coordinator', 'processes', 'process')
    for name in names:
        parser.add_argument(f'--{name}', nargs='?', const='')
    given = vars(parser.parse_known_args(argv)[0])
    missing = [f'--{name}' for name in names if given[name] is None]
    if len(missing) == len(names):
        return _of_cluster(environ)
    if missing:
        raise UserError(
            f'{", ".join(missing)}: missing; several processes are given --coordinator='
            'host:port, --processes and --process'
        )
    if not given['coordinator'].rpartition(':')[2].isdecimal():
        raise UserError(
            f'--coordinator={given["coordinator"]}: give host:port of the first process'
        )
    number = _number('--processes', given['processes'], 1, 1 << 20)
    index = _number('--process', given['process'], 0, number - 1)
    return Place(number, index, given['coordinator'])


def _number(flag: str, text: str, least: int, most: int) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        raise UserError(f'{flag}={text}: give a number from {least} to {most}')
    return int(text)


def _of_cluster(environ: Mapping[str, str]) -> Place:
    """The place that a cluster gives; where there is none, that of a process alone.

    jax has no public way to ask without connecting. These are the variables that its
    own detection reads.
    """
    if 'SLURM_STEP_NODELIST' in environ and 'SLURM_PROCID' in environ:
        # A batch script that calls no srun is one process, however many are allotted.
        tasks = int(environ.get('SLURM_STEP_NUM_TASKS', 1))
        return Place(tasks, int(environ['SLURM_PROCID'])) if tasks > 1 else Place()
    if 'OMPI_MCA_orte_hnp_uri' in environ:
        ranks = int(environ['OMPI_COMM_WORLD_SIZE'])
        return Place(ranks, int(environ['OMPI_COMM_WORLD_RANK']))
    hosts = environ.get('TPU_PROCESS_ADDRESSES', environ.get('TPU_WORKER_HOSTNAMES'))
    slices = int(environ.get('MEGASCALE_NUM_SLICES', 1))
    if hosts and (',' in hosts or slices > 1):
        a_slice = len(hosts.split(','))
        index = int(environ.get('TPU_WORKER_ID', 0))
        index += a_slice * int(environ.get('MEGASCALE_SLICE_ID', 0))
        return Place(a_slice * slices, index)
    if importlib.util.find_spec('libtpu') and 'TPU_SKIP_MDS_QUERY' not in environ:
        return _of_tpu_pod()
    return Place()


def _of_tpu_pod() -> Place:
    """The place that the metadata of a Cloud TPU's hosts give, which jax asks for."""
    from jax._src.clusters import ClusterEnv

    detect = ClusterEnv.auto_detect_unset_distributed_params
    _, number, index, _ = detect(None, None, None, None, None, CONNECT_SECONDS)
    return Place(number or 1, index or 0)
