"""Tests that the pages agree with the code."""

import csv
import inspect
import json
import re
from pathlib import Path

import pages
import pytest
import small_runs

import flaxformer_lite
from docs import shots
from experiments.command_line import flags
from experiments.config import components, schema
from experiments.sweeps import schema as sweeps
from flaxformer_lite.config import schema as model_schema
from flaxformer_lite.config import variants
from flaxformer_lite.layers.blocks import sequential

ROOT = Path(__file__).parents[2]
VARIANTS = (ROOT / 'docs/reference/components/index.md').read_text('utf-8')
CONTRIBUTING = (ROOT / 'CONTRIBUTING.md').read_text('utf-8')


def table():
    """Returns the rows of 'All names': field names and descriptions."""
    section = VARIANTS[VARIANTS.index('## All names') :]
    rows = re.findall(r'^\| (.*?) \| (.*) \|$', section, re.MULTILINE)
    return [(re.findall(r'`([\w.]+)`', left), right) for left, right in rows]


def test_architecture_page_quotes_the_current_code_of_a_layer():
    page = (ROOT / 'docs/explanation/design.md').read_text('utf-8')
    code = Path(inspect.getfile(sequential)).read_text('utf-8')
    (quoted,) = re.findall(r'```python\n(class Sequential.*?)```', page, re.DOTALL)
    assert quoted in code


def test_design_page_lists_the_existing_packages():
    page = pages.text('docs/explanation/design.md')
    tree = page.partition('## Packages')[2].split('```')[1]
    listed, root = set(), ''
    for indent, name in re.findall(r'^( *)([\w]+)/ *', tree, re.MULTILINE):
        root = root if indent else f'{name}/'
        listed.add(f'{root}{name}' if indent else name)
    packages = ('configs', 'experiments', 'flaxformer_lite', 'packages')
    folders = [
        path.parent
        for name in packages[1:]
        for path in ROOT.glob(f'{name}/*/__init__.py')
    ]
    assert listed == {*packages, *(str(path.relative_to(ROOT)) for path in folders)}


def test_design_page_names_existing_functions():
    page = pages.text('docs/explanation/design.md')
    rows = re.findall(r'^\| \d+ \| `(\S+\.py)` \| `([\w.]+)`:', page, re.MULTILINE)
    assert len(rows) > 10
    for path, name in rows:
        code = (ROOT / path).read_text('utf-8')
        for part in name.split('.'):
            assert re.search(rf'\b(def|class) {part}\b', code), (path, name)


@pytest.mark.parametrize('field', variants.fields())
def test_docs_name_each_variant_of_a_field(field):
    (right,) = [right for names, right in table() if field in names]
    # Notes on a variant are in brackets after its name.
    named = re.findall(r'`(\w+)`', re.sub(r'\(.*?\)', '', right))
    missing = set(variants.names(field)) - set(named)
    assert not missing
    assert set(named) - set(variants.names(field)) <= {'d_model'}


def test_docs_name_each_field_of_a_model():
    section = VARIANTS[VARIANTS.index('## All names') :]
    named = re.findall(r'`([\w.]+)`', section)
    assert set(model_schema.fields()) <= set(named)


def test_contributing_page_names_the_folders_of_variants():
    rows = re.findall(r'^\| `([\w.]+)` \|', CONTRIBUTING, re.MULTILINE)
    folders = [*variants.FOLDERS.values(), variants.LOSSES]
    packages = [folder.package for folder in folders]
    assert {f'flaxformer_lite.{row}' for row in rows} == set(packages)


def test_citation_has_the_current_version():
    text = (ROOT / 'CITATION.cff').read_text('utf-8')
    assert f'\nversion: {flaxformer_lite.__version__}\n' in text
    changes = (ROOT / 'CHANGELOG.md').read_text('utf-8')
    released = re.search(r'\ndate-released: (\S+)\n', text)[1]
    assert f'## [{flaxformer_lite.__version__}] - {released}\n' in changes


def named_fields(page):
    """Returns the config fields that a page names, with values if it gives any."""
    text = (ROOT / page).read_text('utf-8')
    sections = '|'.join(sorted({x.partition('.')[0] for x in schema.fields()}))
    in_text = re.findall(rf'`((?:{sections})\.[\w.]+)(?:=([^`\n]+))?`', text)
    in_commands = re.findall(r"--config\.(\w+\.[\w.]+)='?((?<=')[^'\n]+|[^\s`]+)", text)
    return sorted({*in_text, *in_commands})


@pytest.mark.parametrize(
    'page', ['docs/reference/coming_from.md', 'docs/how_to/troubleshooting.md']
)
def test_quoted_values_are_valid_for_their_fields(page):
    named = named_fields(page)
    assert len(named) > 10
    for name, value in named:
        assert name in schema.fields()
        if value:
            given = {'evaluation.average': 1, name: value}
            values = flags.parse_overrides(small_runs.flags(given))
            settings = flags.settings('wmt_base', values)
            components.build(settings.config, 100)


@pytest.mark.parametrize('page', pages.PAGES)
def test_pages_name_existing_fields(page):
    sections = '|'.join(sorted({x.partition('.')[0] for x in schema.fields()}))
    text = pages.text(page)
    # A file may be named as a section is.
    named = re.findall(rf'`(?:--config\.)?((?:{sections})\.[a-z_][\w.]*)[`=]', text)
    named = {
        x for x in named if not x.endswith(('.py', '.model', '.json', '.en', '.de'))
    }
    assert named <= {*schema.fields(), *schema.sections()}


def test_pictures_are_small_and_up_to_date():
    assert shots.stale() == [], 'python -m docs.shots pictures draws them again'
    drawn = {file.name for file in shots.PICTURES.glob('*.[sp][vn]g')}
    assert drawn == set(json.loads(shots.SOURCES.read_text('utf-8')))
    assert all((shots.PICTURES / name).stat().st_size < 150_000 for name in drawn)


RESULTS = sorted(path.parent for path in (ROOT / 'results').glob('*/report.md'))


@pytest.mark.parametrize('folder', RESULTS, ids=lambda folder: folder.name)
def test_each_result_is_complete_and_has_its_sweep(folder):
    text = (folder / 'report.md').read_text('utf-8')
    figures = re.findall(r'\]\(figures/(.*?)\)', text)
    assert figures
    assert set(figures) == {file.name for file in (folder / 'figures').iterdir()}
    pages = (ROOT / 'results').glob('*.md')
    asked = '\n'.join(page.read_text('utf-8') for page in pages)
    assert f'({folder.name}/report.md)' in asked
    sweep = f'configs/sweeps/{folder.name}.py'
    assert f'--config={sweep} ' in asked
    arms = set(sweeps.load(ROOT / sweep).arms)
    # With declared contrasts, the arms are in their own table.
    table = folder / 'tables/arms.csv'
    if not table.exists():
        table = folder / 'tables/answer.csv'
    with open(table, encoding='utf-8') as file:
        assert {row['arm'] for row in csv.DictReader(file)} == arms
