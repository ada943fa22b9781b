"""Tests of the files of a report."""

import csv
import html.parser
import io

import golden_report
import pytest
from golden_report import HOSTILE

from experiments.reports import figures, page


@pytest.fixture(scope='module')
def reports(tmp_path_factory):
    """Returns the folders of the golden reports, by name."""
    folders = {}
    with pytest.MonkeyPatch.context() as patch:
        for name in golden_report.STUDIES:
            folders[name] = tmp_path_factory.mktemp(name)
            patch.chdir(folders[name])
            study = golden_report.write_report(name, folders[name] / 'first')
        patch.setattr(figures, 'files', lambda figure: {})
        page.write(study, folders[name] / 'second', golden_report.NOTES)
    return {name: folder / 'first' for name, folder in folders.items()}


@pytest.fixture(scope='module')
def report(reports):
    return reports['report']


class Reader(html.parser.HTMLParser):
    """Collects the tags, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.attributes = []
        self.text = ''
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        if self.tags[-1:] not in (['script'], ['style']):
            self.text += data


def read_table(report, name):
    text = (report / f'tables/{name}.csv').read_text('utf-8')
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize('name', golden_report.STUDIES)
def test_report_is_the_golden_page(reports, name):
    text = (reports[name] / 'report.md').read_text('utf-8')
    assert text == (golden_report.GOLDENS / f'{name}.md').read_text('utf-8')


def test_equal_runs_give_equal_files(reports):
    first = reports['factorial']
    files = [x.relative_to(first) for x in first.rglob('*') if x.is_file()]
    assert {'index.html', 'report.md', 'answer.json'} <= set(map(str, files))
    for file in files:
        second = first.with_name('second') / file
        assert second.read_bytes() == (first / file).read_bytes(), file


def test_each_table_is_a_csv_and_a_latex_file(report):
    names = {file.stem for file in (report / 'tables').glob('*.csv')}
    assert names - {'runs'} == {x.stem for x in (report / 'tables').glob('*.tex')}
    assert {'answer', 'answer_loss', 'arms', 'over_sentences', 'scores'} <= names
    first, *_ = read_table(report, 'runs')
    assert list(first)[:3] == ['arm', 'seed', 'score']
    assert (first['score'], first['test loss']) == ('30.0', '3.0')
    assert first['train_cpu_seconds'] == '7.0'
    verdicts = [read_table(report, x)[0]['verdict'] for x in ('answer', 'answer_loss')]
    assert verdicts == ['better', 'worse']


def test_page_shows_html_as_text_and_needs_no_other_file(report):
    text = (report / 'index.html').read_text('utf-8')
    assert len(text) < 1_200_000  # the script has 900,000
    reader = Reader(text)
    assert reader.tags.count('script') == 4
    assert 'b' not in reader.tags and 'i' not in reader.tags
    assert HOSTILE in reader.text and golden_report.NOTES[0] in reader.text
    assert '<script>' not in (report / 'report.md').read_text('utf-8')
    links = [value for name, value in reader.attributes if name in ('src', 'href')]
    assert links and all(link.startswith(('#', 'data:')) for link in links)
