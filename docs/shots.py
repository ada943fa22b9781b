"""Draws the pictures of README and docs/, and takes screenshots of the site.

    python -m docs.shots pictures --workdir=runs/wmt_small
    mkdocs build && python -m docs.shots pages --out=shots index.html gallery.html

`pictures` draws docs/pictures/ from a shipped report and a run of
`configs/wmt_small.py`. `sources.json` has the digests of their sources, so that a test
finds outdated pictures. Both commands need Chromium.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / 'docs/pictures'
SOURCES = PICTURES / 'sources.json'
SWEEP = 'configs/sweeps/made_positions.py'
SCORES = 'results/made_positions/tables/runs.csv'
CONFIG = 'configs/wmt_small.py'
PAGE = 'packages/flaxformer_explain/browser/page.html'
TEXT = 'My doctor forgets to close my useful box.'
WIDTHS = (1280, 390)  # CSS pixels of a desktop and a phone
SCHEMES = ('light', 'dark')
CHROMIUM = Path('/usr/bin/chromium')
FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage']


def digest(path: str) -> str:
    return hashlib.sha256((ROOT / path).read_bytes()).hexdigest()


def stale() -> list[str]:
    """Returns the pictures that are older than one of their sources."""
    sources = json.loads(SOURCES.read_text('utf-8'))
    return [
        name
        for name, digests in sources.items()
        if any(digest(path) != drawn_of for path, drawn_of in digests.items())
    ]


def draw(workdir: Path, chromium: Path) -> None:
    """Draws all pictures; `workdir` holds a finished run of `configs/wmt_small.py`."""
    from experiments import open_run
    from flaxformer_explain import looking

    run = open_run(workdir)
    (translation,) = run.translate([TEXT])
    alignment = looking.alignment(run, TEXT, translation)['mean of all layers']
    heads = looking.attention(run, TEXT, translation)['cross-attention']
    charts = {
        'forest': (forest(), [SWEEP, SCORES]),
        'alignment': (alignment, [CONFIG]),
        'attention': (heads, [CONFIG]),
    }
    PICTURES.mkdir(exist_ok=True)
    sources = {}
    for name, (chart, paths) in charts.items():
        write(f'{name}.svg', chart)
        sources[f'{name}.svg'] = {path: digest(path) for path in paths}
    photograph_run(workdir, chromium)
    sources['page.png'] = {path: digest(path) for path in (CONFIG, PAGE)}
    SOURCES.write_text(json.dumps(sources, indent=2) + '\n', 'utf-8')


def photograph_run(workdir: Path, chromium: Path) -> None:
    """Takes a screenshot of a translation's page, down to its logit lens."""
    from playwright.sync_api import sync_playwright

    command = [sys.executable, '-m', 'flaxformer_explain.page', f'--workdir={workdir}']
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        file = Path(folder) / 'page.html'
        command.append(f'--out={file}')
        subprocess.run(command, input=f'{TEXT}\n', text=True, check=True)
        browser = started.chromium.launch(executable_path=chromium, args=FLAGS)
        tab = browser.new_page(viewport={'width': WIDTHS[0], 'height': 1400})
        tab.goto(file.as_uri())
        tab.get_by_role('button', name='zuzumachen').first.click()
        end = tab.get_by_role('heading', name='Logit lens').bounding_box()
        assert end is not None
        tab.screenshot(
            path=PICTURES / 'page.png',
            clip={'x': 0, 'y': 0, 'width': WIDTHS[0], 'height': end['y'] - 30},
        )
        browser.close()


def forest():
    """Draws a report's forest plot, narrow enough for half a page."""
    import altair as alt

    from experiments.reports import figures
    from experiments.sweeps import schema, score_files
    from experiments.sweeps.analysis import compare

    sweep = schema.load(ROOT / SWEEP)
    found = score_files.read_scores(ROOT / SCORES)
    data = sweep.bases(sweep.base)
    contrasts = compare(found, contrasts=sweep.contrasts, data=data)
    tasks = {arm: levels['task'] for arm, levels in sweep.levels.items()}
    score = figures.axis_title(sweep.measure.score, 'inputs twice as long')
    figure = figures.forest(contrasts, score, sweep.without_factor('task'), tasks)
    assert figure is not None
    return figure.chart.properties(width=230, height=alt.Step(15))


def write(name: str, chart) -> None:
    from experiments.reports.figures import Figure, files

    svg = files(Figure(name, name, chart))['svg']
    (PICTURES / name).write_bytes(svg)
    print(f'docs/pictures/{name}  {len(svg):,} bytes')


def photograph(site: Path, out: Path, pages: list[str], chromium: Path) -> None:
    """Takes screenshots of pages in all widths and colour schemes.

    Args:
      site: The folder of the built site.
      out: The folder of the screenshots: `guides/commands_390_dark.png`.
      pages: Files in `site`; empty selects all.
    """
    from playwright.sync_api import sync_playwright

    found = [site / page for page in pages] or sorted(site.rglob('*.html'))
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=FLAGS)
        for scheme in SCHEMES:
            for width in WIDTHS:
                tab = browser.new_page(
                    viewport={'width': width, 'height': 900}, color_scheme=scheme
                )
                for file in found:
                    tab.goto(file.resolve().as_uri())
                    name = file.relative_to(site).with_suffix('')
                    path = out / f'{name}_{width}_{scheme}.png'
                    tab.screenshot(path=path, full_page=True)
                    print(path)
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').partition('\n')[0])
    commands = parser.add_subparsers(dest='command', required=True)
    pictures = commands.add_parser('pictures', help='draw docs/pictures/')
    pictures.add_argument(
        '--workdir', type=Path, required=True, help=f'finished run of {CONFIG}'
    )
    pages = commands.add_parser('pages', help='take screenshots of the site')
    pages.add_argument(
        '--site', type=Path, default=ROOT / 'site', help='directory of the built site'
    )
    pages.add_argument(
        '--out', type=Path, required=True, help='directory of the screenshots'
    )
    for command in (pictures, pages):
        command.add_argument('--chromium', type=Path, default=CHROMIUM)
    pages.add_argument('pages', nargs='*', help='files of the site; default: all')
    args = parser.parse_args()
    if args.command == 'pictures':
        draw(args.workdir, args.chromium)
    else:
        photograph(args.site, args.out, args.pages, args.chromium)


if __name__ == '__main__':
    main()
