"""Runs notebooks and stores their outputs.

    python -m notebooks.execute
    python -m notebooks.execute traps own_loop

Edit a notebook in Jupyter and then run this program. It works in a copy of the
checkout, which discards trained runs. It needs the extra `notebooks`.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).parents[1]
# In execution order: `look_inside` opens the run of `quickstart`, or else trains it.
NAMES = (
    'quickstart',
    'the_paper_in_code',
    'traps',
    'own_loop',
    'pretrained',
    'many_devices',
    'look_inside',
    'explain',
    'ablation',
    'tasks',
)
# `pretrained` opens one of the tests' checkpoints.
_COPIED = (
    'flaxformer_lite',
    'experiments',
    'packages',
    'configs',
    'notebooks',
    'results',
    'tests/goldens/families',
)
_SECONDS = 1_800  # for a cell, on a busy machine


def copy_checkout(folder: Path) -> Path:
    """Copies what notebooks need into a folder; returns the copy's root."""
    root = folder / 'checkout'
    for name in _COPIED:
        ignored = shutil.ignore_patterns('__pycache__')
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    return root


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def execute(path: Path) -> NotebookNode:
    """Runs a notebook from the top, in its own folder and in this environment.

    Raises:
      CellExecutionError: A cell failed.
    """
    notebook = read(path)
    for cell in notebook.cells:
        if cell.cell_type == 'code':
            cell.outputs = []
            cell.execution_count = None
    client = NotebookClient(
        notebook,
        timeout=_SECONDS,
        kernel_name='python3',
        record_timing=False,
        coalesce_streams=True,  # one output for all prints of a cell
        resources={'metadata': {'path': str(path.parent)}},
    )
    return client.execute()


def clean(notebook: NotebookNode, root: Path) -> None:
    """Removes machine-specific paths, versions and times from a notebook."""
    notebook.metadata = {
        'kernelspec': {
            'display_name': 'Python 3',
            'language': 'python',
            'name': 'python3',
        },
        'language_info': {'name': 'python'},
    }
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get('outputs', []):
            if 'text' in output:
                output.text = _without_paths(output.text, root)
            data = output.get('data', {})
            for kind in ('text/plain', 'text/html', 'text/markdown'):
                if kind in data:
                    data[kind] = _without_paths(data[kind], root)


def _without_paths(text: str, root: Path) -> str:
    text = text.replace('\r\n', '\n')  # from the terminal of a shell command
    return text.replace(f'{root}/', '').replace(str(root), '.')


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').partition('\n')[0])
    # Python 3.11 also checks omitted names, [], against the choices.
    parser.add_argument('names', nargs='*', choices=[*NAMES, []], metavar='name')
    names = parser.parse_args().names or NAMES
    with tempfile.TemporaryDirectory() as folder:
        root = copy_checkout(Path(folder))
        for name in names:
            file = f'notebooks/{name}.ipynb'
            notebook = execute(root / file)
            clean(notebook, root)
            nbformat.write(notebook, ROOT / file)
            print(file)


if __name__ == '__main__':
    main()
