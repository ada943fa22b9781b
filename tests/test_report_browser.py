"""A report in a real browser: it draws, answers the pointer, and fits a telephone."""

from pathlib import Path

import pytest
from test_report_page import HOSTILE, inspection, runs

from experiments.reports import arms, page
from experiments.reports.read import read

CHROMIUM = Path('/usr/bin/chromium')
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason='there is no Chromium here'),
]


@pytest.fixture(scope='module')
def report(tmp_path_factory):
    paths = runs(tmp_path_factory.mktemp('runs'))
    study = arms.study([read(path) for path in paths], None)
    folder = tmp_path_factory.mktemp('report')
    page.write(study, folder, inspection(), [], [])
    return folder / 'index.html'


@pytest.fixture(scope='module')
def browser():
    playwright = pytest.importorskip('playwright.sync_api')
    with playwright.sync_playwright() as started:
        flags = ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage']
        found = started.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield found
        found.close()


@pytest.fixture(params=[1280, 390])
def opened(browser, report, request):
    """The page with its figures drawn; at the end, no error and no request."""
    tab = browser.new_page(viewport={'width': request.param, 'height': 900})
    tab.set_default_timeout(10_000)  # milliseconds
    complaints = []
    tab.on('console', lambda message: complaints.append(message.text))
    tab.on('pageerror', lambda error: complaints.append(str(error)))
    asked = []
    tab.on('request', lambda sent: asked.append(sent.url))
    tab.goto(report.as_uri())
    tab.wait_for_function(
        "[...document.querySelectorAll('.plot')].every(x => x.querySelector('svg'))"
    )
    yield tab
    assert complaints == []
    assert [
        url for url in asked if not url.startswith(('file:', 'data:', 'blob:'))
    ] == []
    tab.close()


def plot(tab, name):
    found = tab.locator(f'[data-figure="{name}"]')
    found.scroll_into_view_if_needed()
    return found


def point_at(tab, place):
    """Moves the pointer over the middle of something, as a hand does."""
    box = place.bounding_box()
    x = box['x'] + box['width'] / 2
    y = box['y'] + box['height'] / 2
    tab.mouse.move(x - 5, y - 3)
    tab.mouse.move(x, y, steps=4)
    return x, y


def test_the_page_is_no_wider_than_the_screen(opened):
    width = opened.evaluate('document.documentElement.scrollWidth')
    assert width <= opened.viewport_size['width']
    for figure in opened.locator('.plot').all():
        assert figure.bounding_box()['width'] > 280


def test_the_titles_of_heatmaps_do_not_overlap(opened):
    titles = plot(opened, 'heads_importance').locator('.annotation-text').all()
    assert len(titles) == 2
    heads = plot(opened, 'attention_1_encoder').locator('.annotation-text').all()
    boxes = [title.bounding_box() for title in heads]
    for left, right in zip(boxes[::2], boxes[1::2], strict=True):
        assert left['x'] + left['width'] < right['x']


def test_a_value_is_told_where_it_is_pointed_at(opened):
    chart = plot(opened, 'loss_by_steps')
    point_at(opened, chart.locator('.plotly .nsewdrag'))
    told = chart.locator('.hoverlayer')
    told.get_by_text('num_heads=8').wait_for()


def test_another_axis_can_be_chosen(opened):
    figure = opened.locator('figure:has([data-figure="loss_by_steps"])')
    figure.scroll_into_view_if_needed()
    assert figure.locator('.xtitle').text_content() == 'steps'
    figure.locator('select').select_option('against time')
    figure.locator('.xtitle', has_text='seconds of training').wait_for()


def test_a_head_that_is_clicked_is_shown_large_with_its_words(opened):
    figure = opened.locator('figure:has([data-figure="attention_1_encoder"])')
    heads = plot(opened, 'attention_1_encoder')
    large = figure.locator('.large')
    assert large.locator('.gtitle').text_content() == 'layer 0, head 0'
    last = heads.locator('.nsewdrag').last
    x, y = point_at(opened, last)
    heads.locator('.hoverlayer').get_by_text('from').wait_for()
    opened.mouse.click(x, y)
    large.locator('.gtitle', has_text='layer 1, head 1').wait_for()
    # The words of the axes are text, whatever they hold.
    words = large.locator('.xtick').all_text_contents()
    assert [word.strip('\u200b') for word in words] == ['▁a', HOSTILE]


def test_html_in_a_sentence_is_text(opened):
    assert opened.title() == '2 arms by test bleu'
    shown = opened.locator('.sentence dd').first
    assert shown.inner_text() == HOSTILE
