"""Checkpoints of the Hugging Face Hub: download by name, and upload with a card."""

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.command_line import flags
from experiments.config import load
from experiments.config.schema import ExperimentConfig
from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError, reason, user_errors
from experiments.runs import directory, reading
from experiments.runs.reading import Run
from experiments.runtime import compilation
from flaxformer_checkpoints import converted
from flaxformer_checkpoints.loading import folder
from flaxformer_checkpoints.tokenizer import HuggingfaceTokenizer

# The only files that are downloaded: no code, and no pickled weights.
FILES = (
    '*.json',
    '*.model',
    '*.spm',
    '*.txt',
    'model.safetensors',
    'model-*.safetensors',
)
_NAME = re.compile(r'([\w.-]+/[\w.-]+?)(?:@([\w./-]+))?', re.ASCII)
# Prefix of the cached runs.
_FOLDER_PREFIX = 'hub-'
_LOG_IN = 'Log in with `hf auth login`, or set HF_TOKEN.'


def checkpoint(name: str) -> Path:
    """Returns the folder of a published checkpoint, which it downloads if necessary.

    The files stay in the cache of `huggingface_hub`, which also serves offline calls.

    Args:
      name: A name on the Hub, `google-t5/t5-small`, with an optional revision:
        `google-t5/t5-small@main`. A local folder takes precedence.
    """
    local = Path(name).expanduser()
    if local.is_dir():
        return local
    match = _NAME.fullmatch(name)
    if not match:
        raise UserError(
            f'{name} is neither a folder nor a name on the Hub. Write OWNER/NAME, or '
            'OWNER/NAME@REVISION.'
        )
    hub = _package(name)
    if not sys.stderr.isatty():
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
    with _hub_errors(name):
        found = hub.snapshot_download(
            match[1],
            revision=match[2],
            allow_patterns=list(FILES),
            ignore_patterns=['*/*'],
        )
    _check_safe(name, Path(found))
    return Path(found)


def as_run(name: str, untrained: Tokenizer) -> Path | None:
    """Returns the run of `init_from`, converted from the Hub; None for a local path.

    The converted checkpoint is cached. A path whose first folder exists is local.

    Args:
      untrained: The tokenizer of the new run. A multilingual checkpoint is converted
        for its languages.
    """
    path = Path(name).expanduser()
    first = path.parts[0] if path.parts else ''
    if path.exists() or Path(first).is_dir() or not _NAME.fullmatch(name):
        return None
    source = target = ''
    if isinstance(untrained, HuggingfaceTokenizer):
        source, target = untrained.base_languages
    found = checkpoint(name)
    owner, _, rest = name.partition('/')
    # Later versions may convert it differently.
    version_suffix = '-'.join([found.name, str(load.VERSION), source, target]).rstrip(
        '-'
    )
    folder_name = f'{_FOLDER_PREFIX}{owner}--{rest.partition("@")[0]}-{version_suffix}'
    if not storage.is_file_name(folder_name):
        raise UserError(
            f'tokenizer: the languages {source!r} and {target!r} of {name} must be '
            'codes without slashes.'
        )
    run = compilation.use_cache() / folder_name
    with storage.lock(run.with_name(f'.{run.name}.lock'), wait=True):
        if not storage.exists(run):
            try:
                theirs = converted.read_checkpoint(
                    found, str(ExperimentConfig().data), source, target
                )
            except UserError as error:
                raise UserError(
                    f'{name}, with the languages of tokenizer: {error}'
                ) from None
            converted.write_run(theirs, run)
    return run


def is_converted(run: Path | str) -> bool:
    return Path(run).name.startswith(_FOLDER_PREFIX)


def check_push(name: str) -> None:
    """Raises UserError unless the folder of this name can be uploaded."""
    match = _NAME.fullmatch(name)
    if not match or match[2]:
        raise UserError(f'--push={name} is not a name on the Hub. Write OWNER/NAME.')
    if not _package('--push').get_token():
        raise UserError(f'--push={name} needs an account of the Hub. {_LOG_IN}')


def push(path: Path, name: str, workdir: Path) -> str:
    """Writes a model card to an exported folder, uploads it and returns its address.

    A new repository is private. The folder stays, even after an error.
    """
    card = path / 'README.md'
    storage.write(card, model_card(name, reading.read_run(workdir)))
    hub = _package('--push')
    with _hub_errors(f'--push={name}'):
        address = hub.create_repo(name, private=True, exist_ok=True)
        hub.upload_folder(
            repo_id=name,
            folder_path=path,
            commit_message='Upload a model of flaxformer_lite',
        )
    return str(address)


def model_card(name: str, run: Run) -> str:
    scored = run.evaluations
    directions = [x['direction'] for x in scored.values() if 'direction' in x]
    codes = {code for x in directions for code in re.split('[-+]', x)}
    # The Hub rejects cards with languages other than ISO 639 codes.
    languages = sorted({x.split('_')[0].lower() for x in codes if _is_language(x)})
    header = {
        'library_name': 'transformers',
        'license': 'unknown',
        'language': languages,
        'tags': ['translation', 'flaxformer_lite'],
    }
    lines = [f'{key}: {json.dumps(value)}' for key, value in header.items()]
    rows = ['| set | direction | score | value |', '|---|---|---|---|']
    for of_set, scores in scored.items():
        for metric in reading.metric_names(scores):
            if scores[metric] is None:
                continue
            value = f'{scores[metric]:.2f}'
            signature = f'{metric} ({scores[f"{metric}_signature"]})'
            direction = scores.get('direction', '')
            rows.append(f'| {of_set} | {direction} | {signature} | {value} |')
    config = storage.json_text(storage.read_json(run.path / directory.CONFIG))
    origin = run.config.get('init_from') or 'random parameters'
    use = (
        f'python -m flaxformer_checkpoints.convert --from={name} '
        '--workdir=runs/published\n'
        'python -m experiments.translate --workdir=runs/published <in.txt >out.txt'
    )
    parts = [
        '\n'.join(['---', *lines, '---']),
        f'# {name}',
        'An encoder-decoder Transformer, trained with flaxformer_lite. State its '
        'license above: it depends on the data and on the initial checkpoint.',
        f'Data: `{run.config.get("data")}`. Initialized from: {origin}.',
        f'## Scores at step {run.result["step"]:,}',
        '\n'.join(rows) if scored else 'It was not scored.',
        f'## Use\n\n```\n{use}\n```',
        '## Reproduce',
        '`python -m experiments.run --config=config.json`, with this `config.json`:',
        f'```json\n{config}\n```',
    ]
    return '\n\n'.join(parts) + '\n'


def _is_language(code: str) -> bool:
    return re.fullmatch('[a-z]{2,3}(_[A-Za-z]+)?', code) is not None


def _package(what: str) -> Any:
    flags.require_packages(what, ['huggingface_hub'], 'pretrained')
    import huggingface_hub

    return huggingface_hub


@contextlib.contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError:
        message = f'access is restricted. Accept its terms on its page. {_LOG_IN}'
    except errors.RepositoryNotFoundError:
        message = f'not found on the Hub. Check the name. If it is private: {_LOG_IN}'
    except errors.RevisionNotFoundError:
        message = 'the Hub has no such revision. Check the part after @.'
    except errors.LocalEntryNotFoundError:
        message = (
            'no such folder here, nor in the cache, and the Hub is not reachable (or '
            'HF_HUB_OFFLINE is set). Connect once, or give a folder.'
        )
    except Exception as error:  # its versions use several HTTP packages
        message = f'the Hub does not answer as expected: {reason(error)}'
    else:
        return
    raise UserError(f'{name}: {message}')


def _check_safe(name: str, path: Path) -> None:
    if not (path / folder.CONFIG).is_file():
        raise UserError(f'{name} is not a checkpoint: it has no {folder.CONFIG}.')
    with user_errors():
        config = folder.read_config(path)
    if 'auto_map' in config:
        raise UserError(
            f'{name} needs code from its repository (auto_map), which is never run. '
            'Choose a checkpoint of a family that Transformers has.'
        )
    if not any(path.glob('*.safetensors')):
        raise UserError(
            f'{name} has no safetensors. Pickled weights are not downloaded, because '
            'unpickling can run any program. Choose a revision with model.safetensors, '
            'or download it and convert it yourself with save_pretrained of '
            'Transformers.'
        )
