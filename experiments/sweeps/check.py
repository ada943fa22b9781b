"""What is wrong with a sweep's runs, said before any of them begins."""

from collections.abc import Sequence

from experiments.config import check
from experiments.errors import UserError
from experiments.runs import directory
from experiments.sweeps.schema import Cell


def check_cells(cells: Sequence[Cell]) -> None:
    """Refuses runs that cannot be, and directories that hold something else.

    Raises:
      UserError: names the arm or the directory, and what is wrong.
    """
    arms = set()
    for cell in cells:
        directory.check_directory(cell.path, cell.config.to_dict())
        if cell.arm not in arms:
            arms.add(cell.arm)
            _check_arm(cell)


def _check_arm(cell: Cell) -> None:
    try:
        check.check_overrides(cell.config, cell.overrides)
        check.check_config(cell.config)
        check.build_model(cell.config, cell.config.tokenizer.vocab_size)
    except UserError as error:
        raise UserError(f'arm {cell.arm!r}: {error}') from None
