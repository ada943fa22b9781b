"""Tests of the site's hooks."""

import base64
import importlib.util
import tomllib

import pages
import pytest

pytest.importorskip('mkdocs')
pytest.importorskip('latex2mathml')


def hook(name):
    spec = importlib.util.spec_from_file_location(
        name, pages.ROOT / f'docs/hooks/{name}.py'
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_formula_becomes_mathml():
    found = hook('formulas').on_page_content(
        '<p><span class="arithmatex">\\(a &lt; b\\)</span></p>'
        '<div class="arithmatex">\\[\n\\sqrt{d_k}\n\\]</div>'
    )
    assert 'arithmatex' not in found and '\\sqrt' not in found
    assert '<mo>&#x0003C;</mo>' in found
    assert '<div class="formula"><math' in found and 'display="block"' in found


def test_notebook_page_contains_text_code_and_output():
    png = base64.b64encode(b'picture').decode()
    notebook = {
        'cells': [
            {'cell_type': 'markdown', 'source': ['# Title\n', '$x$']},
            {'cell_type': 'markdown', 'source': '[![Run](https://a/b.svg)](c)'},
            {
                'cell_type': 'code',
                'source': 'print(1)',
                'outputs': [
                    {'output_type': 'stream', 'text': ['1\n']},
                    {'output_type': 'display_data', 'data': {'image/png': png}},
                ],
            },
            {'cell_type': 'code', 'source': '', 'outputs': []},
        ]
    }
    text, pictures = hook('notebook').convert(notebook, 'name')
    assert text == (
        '# Title\n$x$\n\n[Run](c)\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n'
        '![What the code above draws](name_1.png)\n'
    )
    assert pictures == {'name_1.png': b'picture'}


def test_summary_and_lead_are_the_text_before_the_first_heading():
    readme = '# Name\n\nWhat it\nis.\n\nStatus.\n\n![A](b)\n\n## More\n\nText.\n'
    section = hook('pages').section
    assert section(readme, 'summary') == 'What it\nis.'
    assert section(readme, 'lead') == 'Status.\n\n![A](b)'
    assert section(readme, 'More') == 'Text.'


def test_extra_docs_has_the_formatter_of_signatures():
    project = tomllib.loads((pages.ROOT / 'pyproject.toml').read_text('utf-8'))
    extra = project['project']['optional-dependencies']['docs']
    assert any(x.startswith('ruff') for x in extra)
