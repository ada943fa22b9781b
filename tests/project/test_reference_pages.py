"""Tests that docs/how_to/sweeps.md and table3.md agree with the code."""

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re

import optax
import pages

import flaxformer_lite
from configs.sweeps import table3
from docs.hooks import api
from experiments.sweeps import schema
from flaxformer_lite.training.batch import BATCH_ARRAYS

TABLE_3 = pages.text('docs/how_to/table3.md')


def cells(text):
    lines = re.findall(r'^\|(.*)\|$', text, re.MULTILINE)
    return [[cell.strip() for cell in line.split('|')] for line in lines]


def first_cells(text):
    return [row[0] for row in cells(text)]


def section(text, heading):
    return text.partition(f'\n## {heading}\n')[2].partition('\n## ')[0]


def code_in(cell_list):
    return {name for cell in cell_list for name in re.findall(r'`([^`]+)`', cell)}


def texts_in_code():
    """Returns the strings of the code, one a line, with … for inserted values."""
    found = []
    for folder in ('experiments', 'flaxformer_lite'):
        for file in (pages.ROOT / folder).rglob('*.py'):
            for node in ast.walk(ast.parse(file.read_text('utf-8'))):
                parts = node.values if isinstance(node, ast.JoinedStr) else [node]
                if all(isinstance(x, ast.Constant | ast.FormattedValue) for x in parts):
                    values = [getattr(x, 'value', None) for x in parts]
                    found.append(
                        ''.join(x if isinstance(x, str) else '…' for x in values)
                    )
    return re.sub(r'\{[^}\n]*\}', '…', '\n'.join(found))


def test_troubleshooting_quotes_messages_of_the_code():
    code = texts_in_code()
    page = section(pages.text('docs/how_to/troubleshooting.md'), 'Error messages')
    messages = re.findall(r'^\| `([^`]+)` \| ', page, re.MULTILINE)
    assert len(messages) > 10  # it has read the table
    for message in messages:
        # Several texts make one message, such as a field and its problem.
        for words in map(str.strip, re.split('…|: |; |=', message)):
            assert len(words.split()) <= 2 or words in code, words


def api_page():
    page = (pages.ROOT / 'docs/reference/api.md').read_text('utf-8')
    return api.on_page_markdown(page)


def test_api_page_lists_existing_members():
    page = api_page()
    listed = re.findall(
        r'^::: (\S+)\n(?:    .*\n)*?.*members: \[(.*)\]', page, re.MULTILINE
    )
    for module, members in listed:
        for member in members.split(', '):
            assert hasattr(importlib.import_module(module), member), member
    modules = [module for module, _ in listed]
    assert 'flaxformer_explain.explanations.lens' in modules and len(modules) > 3
    for name in set(re.findall(r'^::: (\S+)$', page, re.MULTILINE)) - set(modules):
        assert pkgutil.resolve_name(name)


def test_api_page_lists_every_public_name():
    page = api_page()
    headings = re.findall(r'^(?:##+ |      heading: )fl\.(\S+)$', page, re.MULTILINE)
    losses = 'fl.losses.CrossEntropy(label_smoothing: float = 0.1)'
    assert f'### fl.losses.CrossEntropy\n\n```python\n{losses}\n' in page
    assert set(flaxformer_lite.__all__) <= set(headings)
    assert {'losses.Focal', 'sharding.place', 'blocks.Sequential'} <= set(headings)
    for name, path in api.public_paths().items():
        found = pkgutil.resolve_name(name.replace('fl.', 'flaxformer_lite:', 1))
        assert found is pkgutil.resolve_name(path), name


# Values of the cheat sheet's variables.
CHEAT_SHEET = {
    'fl': flaxformer_lite,
    'optax': optax,
    'schedule': 1e-3,
    'model': flaxformer_lite.Transformer(vocab_size=8),
    'step': lambda state, batch, key: None,
    'result': flaxformer_lite.decoding.DecodeResult,
}


def resolve(code):
    """Evaluates code; of a call with other variables, only checks its arguments."""
    node = ast.parse(code, mode='eval').body
    names = {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
    if isinstance(node, ast.Call) and not names <= CHEAT_SHEET.keys():
        function = eval(ast.unparse(node.func), CHEAT_SHEET)
        keywords = {x.arg: x.value for x in node.keywords}
        inspect.signature(function).bind(*node.args, **keywords)
    else:
        eval(code, CHEAT_SHEET)


def test_code_of_the_cheat_sheet_is_valid():
    functions = (
        flaxformer_lite.Transformer,
        flaxformer_lite.init_state,
        flaxformer_lite.make_train_step,
        flaxformer_lite.generate,
    )
    arguments = {x for f in functions for x in inspect.signature(f).parameters}
    here = code_in(
        [row[-1] for row in cells(pages.text('docs/reference/cheat_sheet.md'))]
    )
    assert len(here) > 100
    for code in here - set(BATCH_ARRAYS):
        name, _, value = code.partition('=')  # of an argument, or of one in a call
        if name not in arguments:
            resolve(code)
        elif value:
            resolve(value)


def test_library_errors_name_existing_members():
    listed = re.findall(r'^::: (\S+)$', api_page(), re.MULTILINE)
    classes = {path.rpartition('.')[2]: pkgutil.resolve_name(path) for path in listed}
    named = re.findall(r'\b([A-Z]\w+)\.(\w+)', '\n'.join(errors_in_code()))
    assert ('LossScale', 'for_model') in named
    for name, member in named:
        fields = getattr(classes[name], '__dataclass_fields__', ())
        assert member in fields or hasattr(classes[name], member), (name, member)


def errors_in_code():
    """Returns the strings of the library's errors."""
    for file in (pages.ROOT / 'flaxformer_lite').rglob('*.py'):
        for error in ast.walk(ast.parse(file.read_text('utf-8'))):
            if isinstance(error, ast.Raise):
                for node in ast.walk(error):
                    if isinstance(node, ast.Constant) and isinstance(node.value, str):
                        yield node.value


def test_guide_to_sweeps_names_every_field():
    guide = pages.text('docs/how_to/sweeps.md')
    fields = {field.name for field in dataclasses.fields(schema.Sweep)}
    fields -= set(schema.PLANNED_FIELDS)
    assert code_in(first_cells(section(guide, 'A file'))) == fields


def test_guide_has_the_published_table_3():
    rows = {row[0]: row for row in cells(section(TABLE_3, 'The rows'))[2:]}
    assert list(rows) == list(table3.ARMS)
    for arm, published in table3.published().items():
        perplexity, bleu, millions = rows[arm][-3:]
        assert float(perplexity) == published['perplexity']
        assert float(bleu) == published['bleu']
        if 'parameters' in published:
            assert float(millions) * 1e6 == published['parameters']
        else:
            assert not millions
