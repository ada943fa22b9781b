"""Tests of the built site in a browser."""

import subprocess
import sys

import pages
import pytest
import test_report_browser

pytestmark = test_report_browser.pytestmark
pytest.importorskip('mkdocs')
pytest.importorskip('latex2mathml')
NOT_SHOWN = '[...document.images].filter(x => !x.naturalWidth).map(x => x.src)'


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp('site')
    command = ['mkdocs', 'build', '--quiet', '--strict', '--site-dir', folder]
    subprocess.run([sys.executable, '-m', *command], cwd=pages.ROOT, check=True)
    return folder


@pytest.mark.parametrize(('width', 'scheme'), [(1280, 'light'), (390, 'dark')])
def test_each_page_fits_its_screen_and_shows_its_pictures(site, browser, width, scheme):
    size = {'width': width, 'height': 900}
    tab = browser.new_page(viewport=size, color_scheme=scheme)
    asked = []
    tab.on('request', lambda sent: asked.append(sent.url))
    files = [file for file in sorted(site.rglob('*.html')) if file.name != '404.html']
    assert len(files) > 50
    too_wide, not_shown = [], []
    for file in files:
        tab.goto(file.as_uri())
        if tab.evaluate('document.documentElement.scrollWidth') > width:
            too_wide.append(file.name)
        not_shown += tab.evaluate(NOT_SHOWN)
    tab.close()
    assert too_wide == [] and not_shown == []
    assert all(url.startswith(('file:', 'data:', 'blob:')) for url in asked)


@pytest.mark.parametrize('width', [1280, 390])
def test_home_page_shows_its_buttons_without_scrolling(site, browser, width):
    tab = browser.new_page(viewport={'width': width, 'height': 900})
    tab.goto((site / 'index.html').as_uri())
    buttons = [x.bounding_box() for x in tab.locator('.md-button').all()]
    tab.close()
    assert len(buttons) == 4
    assert all(box['y'] + box['height'] < 900 for box in buttons)


def test_signatures_are_wrapped_to_the_page(site, browser):
    tab = browser.new_page(viewport={'width': 1280, 'height': 900})
    tab.goto((site / 'reference/api.html').as_uri())
    widths = tab.locator('.doc-signature code').evaluate_all(
        'found => found.map(x => [x.scrollWidth, x.clientWidth])'
    )
    tab.close()
    assert len(widths) > 100
    assert all(needed <= shown for needed, shown in widths)
