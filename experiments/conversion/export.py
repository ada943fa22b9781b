"""A run's directory → a new folder in the format of another program."""

from collections.abc import Callable
from pathlib import Path

from experiments import storage
from experiments.conversion import huggingface, published, stablehlo, trained
from experiments.conversion.to_ctranslate2 import model as ctranslate2
from experiments.data.published import PublishedTokenizer
from experiments.errors import UserError

# Each refuses what it does not know, and gives back what writes to a folder.
FORMATS: dict[str, Callable[..., Callable[[Path], None]]] = {
    'ctranslate2': ctranslate2.prepare,
    'huggingface': huggingface.prepare,
    'stablehlo': stablehlo.prepare,
}


def check_new(out: Path) -> None:
    """Refuses a folder that holds anything.

    Raises:
      UserError: it does, or it is a file, or nothing can be written there.
    """
    if storage.exists(out) and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f'--out={out} is there already: give a new folder')
    obstacle = storage.obstacle(out)
    if obstacle:
        raise UserError(f'--out={out}: {obstacle}')


def export(workdir: Path, to: str, out: Path, quantization: str | None = None) -> None:
    """Writes what a run has trained, in another format; all of it or nothing.

    Args:
      workdir: the run's directory.
      to: one of `FORMATS`.
      out: a folder that is not there yet, or is empty.
      quantization: of matrices, 'int8' or 'float32'; of ctranslate2 alone.

    Raises:
      UserError: the folder holds something, a package is missing, or the format does
        not know a field's value; names the field.
    """
    check_new(out)
    arguments = {}
    if quantization is not None:
        if to != 'ctranslate2':
            raise UserError(
                f'--quantization={quantization} is for --to=ctranslate2, not --to={to}'
            )
        arguments['quantization'] = quantization
    found = trained.read(workdir)
    prepare = FORMATS[to]
    if isinstance(found.tokenizer, PublishedTokenizer):
        prepare = published.preparer(to)
    write = prepare(found, **arguments)
    with storage.replacing(out) as folder:
        folder.mkdir()
        write(folder)
