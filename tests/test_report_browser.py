"""A report in a real browser: it draws, answers the pointer, and fits a telephone."""

import numpy as np
import pytest
from test_report_page import HOSTILE, attention, runs

from docs.shots import CHROMIUM
from experiments.reports import arms, figures, page
from experiments.runs.reading import read_run

LENGTH = 60  # tokens
DRAWN = "[...document.querySelectorAll('.plot')].every(plot => plot.view)"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason='there is no Chromium here'),
]


@pytest.fixture(scope='module')
def report(tmp_path_factory):
    paths = runs(tmp_path_factory.mktemp('runs'))
    study = arms.study([read_run(path) for path in paths], None)
    folder = tmp_path_factory.mktemp('report')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, 'files', lambda figure: {})
        page.write(study, folder)
    return folder / 'index.html'


@pytest.fixture(scope='module')
def hard(tmp_path_factory):
    """A page of a long sentence, from right to left."""
    pieces = [f'▁كلمة{i}' for i in range(LENGTH)]
    section = attention(pieces, np.eye(LENGTH))
    section.text.append('كلمة ' * LENGTH)
    file = tmp_path_factory.mktemp('hard') / 'page.html'
    file.write_text(page.html('run', [section]), encoding='utf-8')
    return file


@pytest.fixture(params=[1280, 390])
def tab(browser, request):
    """An empty tab; at the end, no complaint and no request to another place."""
    found = browser.new_page(viewport={'width': request.param, 'height': 900})
    found.set_default_timeout(30_000)  # milliseconds
    complaints = []
    found.on('console', lambda message: complaints.append(message.text))
    found.on('pageerror', lambda error: complaints.append(str(error)))
    asked = []
    found.on('request', lambda sent: asked.append(sent.url))
    yield found
    assert complaints == []
    assert all(url.startswith(('file:', 'data:', 'blob:')) for url in asked)
    found.close()


def open_page(tab, file):
    tab.goto(file.as_uri())
    tab.wait_for_function(DRAWN)
    return tab


@pytest.mark.parametrize('file', ['report', 'hard'])
def test_the_page_is_no_wider_than_the_screen(tab, file, request):
    open_page(tab, request.getfixturevalue(file))
    width = tab.evaluate('document.documentElement.scrollWidth')
    assert width <= tab.viewport_size['width']
    for figure in tab.locator('.plot').all():
        assert figure.bounding_box()['width'] > 280


def test_a_value_is_told_where_it_is_pointed_at(tab, report):
    open_page(tab, report)
    chart = tab.locator('[data-figure="loss"]')
    chart.scroll_into_view_if_needed()
    x, y = chart.evaluate(
        'plot => [["x", 10], ["y", 7.0]].map(([axis, value], i) => '
        'plot.view.origin()[i] + plot.view.scale(axis)(value))'
    )
    box = chart.locator('canvas').bounding_box()
    tab.mouse.move(box['x'] + x, box['y'] + y, steps=4)
    told = tab.locator('#vg-tooltip-element.visible')
    told.get_by_text('num_heads=').wait_for()


def test_a_head_that_is_clicked_is_shown_large(tab, hard):
    open_page(tab, hard)
    maps = tab.locator('[data-figure="maps"]')
    maps.scroll_into_view_if_needed()
    picked = 'plot => plot.view.data("picked_store").map(x => x.values)'
    assert maps.evaluate(picked) == [[0, 0]]
    box = maps.locator('canvas').bounding_box()
    tab.mouse.click(box['x'] + 210, box['y'] + 200)
    tab.wait_for_function(
        f'JSON.stringify(({picked})(document.querySelector('
        '"[data-figure=maps]"))) === "[[1,1]]"'
    )


def test_html_in_a_sentence_is_text(tab, report):
    open_page(tab, report)
    assert tab.title() == '2 arms by test bleu'
    tab.get_by_text(HOSTILE).first.wait_for()
