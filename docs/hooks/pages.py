"""Pages of files elsewhere, parts of README, and links to the repository.

Links are relative to the file that contains them, so that they also work in the
repository. A link to a page of the site becomes a link to the page, and other files'
become links to the repository. mkdocs warns of missing files.
"""

import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

LOG = logging.getLogger('mkdocs.hooks.pages')
ROOT = Path(__file__).resolve().parents[2]
# Markdown outside docs/ that is a page too, with the figures that it shows.
PAGES = (
    'CHANGELOG.md',
    'CONTRIBUTING.md',
    'benchmarks/README.md',
    'results/README.md',
    'results/published.md',
    'results/*/report.md',
    'results/*/figures/*.svg',
)
_LINK = re.compile(r'(?<=\]\()([^)\s]+)(?=\))')
_INCLUDE = re.compile(r'^<!-- include README\.md: (.*?) -->$', re.MULTILINE)
# A command's help: <!-- help experiments.run -->
_HELP = re.compile(r'^<!-- help ([\w.]+) -->$', re.MULTILINE)
# A picture that a notebook was saved with, which lies in no file.
_FIGURE = re.compile(r'^<!-- figure (\w+ \d+): (.*?) -->$', re.MULTILINE)
_BLOCK = re.compile(r'<pre>(.*?)</pre>', re.DOTALL)
_PRINTED_TABLE = re.compile(r'^-+(  -+)+$', re.MULTILINE)
_CODE = re.compile(r'(^```.*?^```$|`[^`\n]*`)', re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File(name, str(ROOT), config.site_dir, False))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    here = Path(page.file.abs_src_path or ROOT / page.file.src_uri)
    markdown = rewrite_links(markdown, here, page.file.src_uri, config.repo_url, files)

    def include(found: re.Match) -> str:
        text = section((ROOT / 'README.md').read_text('utf-8'), found[1])
        source = ROOT / 'README.md'
        return rewrite_links(text, source, page.file.src_uri, config.repo_url, files)

    def figure(found: re.Match) -> str:
        name = f'notebooks/{found[1].replace(" ", "_")}.'
        uris = [file.src_uri for file in files if file.src_uri.startswith(name)]
        if not uris:
            LOG.warning('%s shows figure %s, which is not there', here, found[1])
            return ''
        return f'![{found[2]}]({_from(page.file.src_uri, uris[0])})'

    markdown = _HELP.sub(lambda found: command_help(found[1]), markdown)
    return _FIGURE.sub(figure, _INCLUDE.sub(include, markdown))


def on_page_content(page_html: str, **_: Any) -> str:
    """Marks the tables that commands print, which must not be wrapped."""

    def marked(found: re.Match) -> str:
        if _PRINTED_TABLE.search(re.sub('<.*?>', '', found[1])):
            return f'<pre class="printed-table">{found[1]}</pre>'
        return found[0]

    return _BLOCK.sub(marked, page_html)


def on_post_page(page_html: str, **_: Any) -> str:
    """Names the theme's search, which is a dialog without a name."""
    return page_html.replace('role="dialog"', 'role="dialog" aria-label="Search"', 1)


def on_post_template(template_html: str, **_: Any) -> str:
    """Names the search of the 404 page."""
    return on_post_page(template_html)


def section(readme: str, name: str) -> str:
    """Returns the text under a heading of README.

    'summary' is the first paragraph, and 'lead' the others before the first heading.

    Raises:
      ValueError: the heading doesn't exist.
    """
    lead, *sections = re.split(r'^## ', readme, flags=re.MULTILINE)
    summary, _, rest = lead.partition('\n')[2].strip().partition('\n\n')
    if name in ('summary', 'lead'):
        return summary if name == 'summary' else rest
    for text in sections:
        heading, _, body = text.partition('\n')
        if heading == name:
            return body.strip()
    raise ValueError(f'README.md has no section {name!r}')


def command_help(module: str) -> str:
    """Returns what `python -m module --help` prints, without the fields of a config."""
    done = subprocess.run(
        [sys.executable, '-m', module, '--help'],
        cwd=ROOT,
        env=os.environ | {'COLUMNS': '76', 'PYTHONPATH': str(ROOT)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        LOG.warning('%s --help failed: %s', module, done.stderr)
    text = done.stdout.partition('\nconfigs: ')[0].rstrip()
    return f'```text\n{text}\n```'


def rewrite_links(
    markdown: str, here: Path, uri: str, repo_url: str, files: Files
) -> str:
    """Returns the Markdown of the file `here`, with links as seen from page `uri`."""

    def link(found: re.Match) -> str:
        return _link(found[1], here, uri, repo_url, files)

    parts = _CODE.split(markdown)
    parts[::2] = [_LINK.sub(link, part) for part in parts[::2]]
    # A link's text may hold code, so its target can follow a piece of it.
    return ''.join(parts)


def _link(target: str, here: Path, uri: str, repo_url: str, files: Files) -> str:
    path, hash_sign, anchor = target.partition('#')
    if not path or '://' in path:
        return target
    there = Path(os.path.normpath(here.parent / path))
    # A notebook's page and pictures are made of it, and lie nowhere.
    made = os.path.relpath(there, ROOT).replace('.ipynb', '.md')
    for file in files:
        is_there = file.abs_src_path and Path(file.abs_src_path) == there
        if is_there or file.src_uri == made:
            return _from(uri, file.src_uri) + hash_sign + anchor
    if not there.exists() or not there.is_relative_to(ROOT):
        LOG.warning('%s links to %s, which is not there', here, target)
        return target
    kind = 'tree' if there.is_dir() else 'blob'
    name = there.relative_to(ROOT).as_posix()
    return f'{repo_url}/{kind}/main/{name}{hash_sign}{anchor}'


def _from(page: str, target: str) -> str:
    """Returns the address of a file of the site, relative to one of its pages."""
    return os.path.relpath(target, os.path.dirname(page) or '.')
