"""Memory and processor time of checkpoints: saving, restoring, and averaging several.

    python -m benchmarks.checkpoints --megabytes=500
    python -m benchmarks.checkpoints --megabytes=2570

The state resembles that of `wmt_big` with Adam: parameters and two moments, each a
third of the megabytes. A sixth of each is an embedding, the rest arrays of 16 MB. Each
operation runs in its own process, and its peak counts from its start. The peak of
saving includes the state itself, so its minimum is 1.0.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.command_line import console

ROWS, COLUMNS = 1024, 4096  # of an array of 16 MB


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--megabytes', type=int, default=500, help='of the state')
    parser.add_argument('--number', type=int, default=2, help='of checkpoints averaged')
    parser.add_argument('--folder', type=Path, help='where they are written')
    parser.add_argument('--work', choices=WORK, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        print(json.dumps(WORK[args.work](args)))
        return
    rows = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for work in WORK:
            found = in_a_process(args, folder, work)
            row = [work, *found.values()]
            rows.append(row)
            print(*row, file=sys.stderr, flush=True)
    head = ['', 'state MB', 'peak MB', 'peak / state', 'CPU s', 'seconds']
    print(console.table(head, rows))


def in_a_process(args: argparse.Namespace, folder: str, work: str) -> dict[str, Any]:
    """Runs an operation in its own process and returns its report."""
    command = [sys.executable, '-m', 'benchmarks.checkpoints', f'--work={work}']
    command += [f'--megabytes={args.megabytes}', f'--number={args.number}']
    command += [f'--folder={folder}']
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def state(megabytes: int, step: int) -> Any:
    """Returns parameters and moments of random numbers, which don't compress."""
    import jax

    embedding = max(1, megabytes * 10**6 // 18 // (4 * ROWS))
    arrays = max(1, megabytes * 10**6 * 5 // 18 // (4 * ROWS * COLUMNS))

    def tree(key: Any) -> dict[str, Any]:
        keys = jax.random.split(key, arrays + 1)
        leaves = {'embedding': jax.random.normal(keys[0], (embedding, ROWS))}
        for i in range(arrays):
            leaves[f'kernel_{i}'] = jax.random.normal(keys[i + 1], (ROWS, COLUMNS))
        return leaves

    keys = jax.random.split(jax.random.key(step), 3)
    names = ('params', 'first_moments', 'second_moments')
    return {name: tree(key) for name, key in zip(names, keys, strict=True)}


def shapes(megabytes: int) -> Any:
    """Returns the shapes of a state, on the first device."""
    import jax

    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here),
        jax.eval_shape(lambda: state(megabytes, 1)),
    )


def save(args: argparse.Namespace) -> dict[str, Any]:
    """Saves several checkpoints in turn."""
    import jax

    from experiments.checkpoints.checkpoints import Checkpoints

    checkpoints = Checkpoints(args.folder, keep=args.number)
    for step in range(1, args.number):
        checkpoints.save(step, state(args.megabytes, step), {})
        checkpoints.wait()
    of_process = resident()
    last = jax.block_until_ready(state(args.megabytes, args.number))
    checkpoints.wait()

    def work() -> None:
        checkpoints.save(args.number, last, {})
        checkpoints.wait()

    found = measured(work, last, min(of_process, resident() - size(last)))
    checkpoints.close()
    return found


def restore(args: argparse.Namespace) -> dict[str, Any]:
    """Restores the latest checkpoint completely."""
    import jax

    from experiments.checkpoints.checkpoints import Checkpoints

    checkpoints = Checkpoints(args.folder)
    abstract = shapes(args.megabytes)
    jax.block_until_ready(state(1, 1))  # excludes the compiler's own memory
    return measured(lambda: checkpoints.restore(abstract), abstract, resident())


def average(args: argparse.Namespace) -> dict[str, Any]:
    """Averages the parameters of all checkpoints."""
    import jax

    from experiments.checkpoints.checkpoints import Checkpoints

    checkpoints = Checkpoints(args.folder)
    abstract = shapes(args.megabytes)
    params = abstract['params']
    steps = list(range(1, args.number + 1))
    jax.block_until_ready(state(1, 1))

    def work() -> Any:
        return jax.block_until_ready(
            checkpoints.average(steps, {'params': params}).variables
        )

    return measured(work, abstract, resident())


WORK: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    'save': save,
    'restore': restore,
    'average': average,
}


def measured(work: Callable[[], Any], tree: Any, before: int) -> dict[str, Any]:
    """Returns the peak above `before` in bytes, and the time of a function."""
    Path('/proc/self/clear_refs').write_text('5', encoding='ascii')
    began, processor = time.perf_counter(), time.process_time()
    result = work()
    seconds = time.perf_counter() - began
    processor = time.process_time() - processor
    peak = status('VmHWM') - before
    del result
    return {
        'state': size(tree) / 1e6,
        'peak': peak / 1e6,
        'ratio': f'{peak / size(tree):.2f}',
        'processor': f'{processor:.1f}',
        'seconds': f'{seconds:.1f}',
    }


def size(tree: Any) -> int:
    """Returns the bytes of a state."""
    import jax

    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def resident() -> int:
    """Returns the bytes of memory that this process uses."""
    return status('VmRSS')


def status(field: str) -> int:
    """Returns a size in bytes from Linux's status of this process."""
    text = Path('/proc/self/status').read_text('utf-8')
    found = re.search(rf'{field}:\s+(\d+) kB', text)
    assert found is not None
    return int(found[1]) * 1024


if __name__ == '__main__':
    main()
