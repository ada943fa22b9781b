"""Renders notebooks as pages: their Markdown, code and saved output.

Nothing is executed. A page `notebooks/<name>.md` of the navigation is
`notebooks/<name>.ipynb`.
"""

import base64
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
_REMOTE_PICTURE = re.compile(r'!\[([^\]]*)\]\(https?://[^)]*\)')


def on_files(files: Files, config: Any) -> Files:
    for name in sorted(set(re.findall(r'notebooks/(\w+)\.md', str(config.nav)))):
        if name == 'index':
            continue
        path = ROOT / f'notebooks/{name}.ipynb'
        text, pictures = convert(json.loads(path.read_text('utf-8')), name)
        uri = f'notebooks/{name}.md'
        files.append(File.generated(config, uri, content=text))
        for picture, data in pictures.items():
            uri = f'notebooks/{picture}'
            files.append(File.generated(config, uri, content=data))
    return files


def convert(notebook: dict[str, Any], stem: str) -> tuple[str, dict[str, bytes]]:
    """Returns a notebook's Markdown, and its pictures by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook['cells']:
        source = _joined(cell['source'])
        if cell['cell_type'] == 'markdown':
            # A badge of another host is a link like any other.
            parts.append(_REMOTE_PICTURE.sub(r'\1', source))
        if cell['cell_type'] != 'code' or not source.strip():
            continue
        parts.append(_fenced(source, 'python'))
        for output in cell['outputs']:
            parts.append(_output(output, stem, pictures))
    return '\n\n'.join(parts) + '\n', pictures


def _output(output: dict[str, Any], stem: str, pictures: dict[str, bytes]) -> str:
    if output['output_type'] == 'stream':
        return _fenced(_joined(output['text']), 'text')
    if output['output_type'] == 'error':
        raise ValueError(f'the notebook {stem} was saved with an error')
    data = output['data']
    for kind, ending in (('image/svg+xml', 'svg'), ('image/png', 'png')):
        if kind in data:
            name = f'{stem}_{len(pictures) + 1}.{ending}'
            content = _joined(data[kind])
            pictures[name] = (
                content.encode() if ending == 'svg' else base64.b64decode(content)
            )
            return f'![What the code above draws]({name})'
    if 'text/markdown' in data:
        return _joined(data['text/markdown'])
    return _fenced(_joined(data['text/plain']), 'text')


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else ''.join(text)


def _fenced(text: str, language: str) -> str:
    return f'```{language}\n{text.rstrip()}\n```'
