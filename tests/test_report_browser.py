"""A report in a real browser: it draws, answers the pointer, and fits a telephone."""

import itertools
from pathlib import Path

import pytest
from test_report_page import HOSTILE, inspection, runs

from experiments.reports import arms, page
from experiments.reports.display import document, themes
from experiments.reports.inside import sections
from experiments.reports.inside.attended import Attended
from experiments.runs.reading import read_run as read

LENGTH = 60  # tokens

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


@pytest.fixture(params=[1280, 390])
def opened_hard(browser, tmp_path, request):
    """A page of a long sentence, from right to left, on a dark screen."""
    pieces = [f'▁كلمة{i}' for i in range(LENGTH)]
    axes = {'decoder cross': pieces}
    rows = [[(i * j % 7) / 7 for j in range(LENGTH)] for i in range(LENGTH)]
    weights = {'decoder cross': [[rows] * 2] * 2}
    sentence = Attended('كلمة ' * LENGTH, 'x', axes, axes, weights)
    found = inspection()._replace(sentences=[sentence])
    file = tmp_path / 'page.html'
    text = document.html('run', sections.of_run(found))
    file.write_text(text, encoding='utf-8')
    tab = browser.new_page(
        viewport={'width': request.param, 'height': 900}, color_scheme='dark'
    )
    tab.set_default_timeout(30_000)  # milliseconds
    complaints = []
    tab.on('console', lambda message: complaints.append(message.text))
    tab.on('pageerror', lambda error: complaints.append(str(error)))
    tab.goto(file.as_uri())
    tab.wait_for_function(
        "[...document.querySelectorAll('.plot')].every(x => x.querySelector('svg'))"
    )
    yield tab
    assert complaints == []
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
    # The words of the axes are text, whatever they hold; long ones are cut.
    words = large.locator('.xtick').all_text_contents()
    assert [word.strip('\u200b') for word in words] == ['▁a', f'{HOSTILE[:17]}…']


def test_an_alignment_marks_a_cell_of_each_row(opened):
    figure = opened.locator('figure:has([data-figure^="alignment_1"])')
    figure.scroll_into_view_if_needed()
    assert figure.locator('.ytick').count() == 2
    assert figure.locator('.scatterlayer .point').count() == 2
    figure.locator('select').select_option(index=2)
    figure.locator('.annotation-text', has_text='alignment, layer 1').wait_for()


def test_names_beside_a_long_sentence_do_not_overlap(opened_hard):
    for axis, side in (('.xtick', 'x'), ('.ytick', 'y')):
        for plot in opened_hard.locator('.large, [data-figure^="alignment"]').all():
            boxes = [tick.bounding_box() for tick in plot.locator(axis).all()]
            starts = [box[side] + (box['width'] if side == 'x' else 0) for box in boxes]
            assert len(starts) == LENGTH
            assert min(b - a for a, b in itertools.pairwise(starts)) > 10
    width = opened_hard.evaluate('document.documentElement.scrollWidth')
    assert width <= opened_hard.viewport_size['width']


def test_a_page_is_dark_where_the_screen_is(opened_hard):
    dark = themes.PAPER['dark']
    ground = 'getComputedStyle(document.body).backgroundColor'
    red, green, blue = (int(dark[i : i + 2], 16) for i in (1, 3, 5))
    assert opened_hard.evaluate(ground) == f'rgb({red}, {green}, {blue})'
    drawn = "document.querySelector('.plot')._fullLayout"
    assert opened_hard.evaluate(f'{drawn}.paper_bgcolor') == dark
    opened_hard.emulate_media(color_scheme='light')
    light = themes.PAPER['light']
    opened_hard.wait_for_function(f"{drawn}.paper_bgcolor === '{light}'")


def test_html_in_a_sentence_is_text(opened):
    assert opened.title() == '2 arms by test bleu'
    shown = opened.locator('.sentence dd').first
    assert shown.inner_text() == HOSTILE
