"""Tests of a report in a browser."""

import golden_report
import pytest
from golden_report import HOSTILE

from docs.shots import CHROMIUM
from experiments.reports import arms, figures, page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason='there is no Chromium here'),
]


@pytest.fixture(scope='module')
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp('report')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(figures, 'files', lambda figure: {})
        runs = golden_report.make_study().runs
        page.write(arms.study(runs, None), folder)
    return folder / 'index.html'


@pytest.fixture(params=[1280, 390])
def tab(browser, request):
    """Returns an empty tab; later checks for console errors and foreign requests."""
    page_tab = browser.new_page(viewport={'width': request.param, 'height': 900})
    page_tab.set_default_timeout(30_000)  # milliseconds
    messages = []
    page_tab.on('console', lambda message: messages.append(message.text))
    page_tab.on('pageerror', lambda error: messages.append(str(error)))
    urls = []
    page_tab.on('request', lambda request: urls.append(request.url))
    yield page_tab
    assert messages == []
    assert all(url.startswith(('file:', 'data:', 'blob:')) for url in urls)
    page_tab.close()


def open_page(tab, file):
    tab.goto(file.as_uri())
    return tab


def draw(tab, figure):
    plot = tab.locator(f'[data-figure="{figure}"]')
    plot.scroll_into_view_if_needed()
    tab.wait_for_function('plot => plot.view', arg=plot.element_handle())
    return plot


def test_page_fits_the_width_of_the_screen_and_shows_html_as_text(tab, report):
    open_page(tab, report)
    for plot in tab.locator('.plot').all():
        figure = draw(tab, plot.get_attribute('data-figure'))
        assert figure.bounding_box()['width'] > 280
    width = tab.evaluate('document.documentElement.scrollWidth')
    assert width <= tab.viewport_size['width']
    # HTML in a sentence is text.
    assert tab.title() == '3 arms by test bleu'
    tab.get_by_text(HOSTILE).first.wait_for()


def test_print_has_all_figures_and_unclipped_tables(browser, report):
    tab = browser.new_page()
    open_page(tab, report)
    last = tab.locator('.plot').last
    assert last.evaluate('plot => plot.childElementCount') == 0
    tab.emulate_media(media='print')
    tab.evaluate('dispatchEvent(new Event("beforeprint"))')
    for plot in tab.locator('.plot').all():
        assert plot.evaluate('plot => plot.querySelector("canvas").width') > 0
    for table in tab.locator('.wide:visible').all():
        assert table.evaluate('table => getComputedStyle(table).overflow') == 'visible'
        assert table.evaluate('table => table.scrollWidth <= table.clientWidth')
    tab.close()


def test_table_is_sorted_by_its_numbers_from_the_keyboard(tab, report):
    open_page(tab, report)
    table = tab.locator('.wide').first
    head = table.get_by_role('columnheader', name='difference')

    def arms_shown():
        return table.locator('tbody td:first-child').all_text_contents()

    def press():
        head.get_by_role('button').press('Enter')
        return arms_shown(), head.get_attribute('aria-sort')

    four, eight, none = (f'num_heads={number}' for number in (4, 8, 16))
    assert arms_shown() == [eight, four, none]
    # Rows without a difference are the last either way.
    assert press() == ([eight, four, none], 'ascending')
    assert press() == ([eight, four, none], 'descending')
    head = table.get_by_role('columnheader', name='test bleu')
    assert press() == ([four, eight, none], 'ascending')
    assert press() == ([eight, four, none], 'descending')
    assert table.locator('[aria-sort]').count() == 1
    head = table.get_by_role('columnheader', name='arm')
    assert press() == ([none, four, eight], 'ascending')


def test_links_of_the_contents_unfold_their_sections(tab, report):
    open_page(tab, report)
    link = tab.get_by_role('link', name='Curves')
    section = tab.locator('details', has=tab.get_by_role('heading', name='Curves'))
    section.locator('summary').first.press('Enter')
    assert not section.evaluate('details => details.open')
    link.press('Enter')
    tab.wait_for_function('details => details.open', arg=section.element_handle())
    draw(tab, 'loss')
    if tab.viewport_size['width'] > 1100:
        box = link.bounding_box()
        assert 0 <= box['y'] < tab.viewport_size['height']


def test_text_and_tables_need_no_javascript(browser, report):
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(report.as_uri())
    assert tab.get_by_text('diverged at step').is_visible()
    assert tab.get_by_role('cell', name='33.10 ± 0.14').first.is_visible()
    context.close()
