"""Tests that the Python of README and docs/ runs and that all flags exist."""

import argparse
import ast
import importlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tokenize
import tomllib
from pathlib import Path

import jax
import numpy as np
import pages
import pytest
from test_sweep_schema import write_sweep

from experiments.command_line import flags
from experiments.config import check, components, load
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError
from experiments.sweeps import schema
from flaxformer_lite.layers.blocks import sequential

# Additional names for the Python of a page; one page quotes a class.
PAGE_NAMES = {'docs/explanation/design.md': vars(sequential)}
PAGES_WITH_PYTHON = [page for page in pages.PAGES if pages.snippets(page)]
# Pages that compile no model run by default.
QUICK = (
    'docs/explanation/design.md',
    'docs/explanation/evidence.md',
    'docs/how_to/data.md',
    'docs/how_to/metrics.md',
    'docs/how_to/sweeps.md',
    'docs/packages/parallel_grammar.md',
)
COMMANDS = [(page, line) for page in pages.PAGES for line in pages.commands(page)]


def after_readme(names):
    assert names['logits'].shape == (2, 3, 8_000)
    result = names['result']
    assert result.tokens.shape == (2, 4, 20) and result.exists.all()
    assert int(names['state'].step) == 1 and int(names['state'].skipped) == 0


def after_looking_inside(names):
    seen, stats = names['seen'], names['stats']
    assert seen.weights['decoder cross'][0].shape == (2, 4, 3, 4)
    assert seen.heads['encoder'][0].shape == (2, 4, 4, 16)
    assert stats['encoder']['entropy'].shape == (2, 4)
    for figures in stats.values():
        assert set(figures) <= named('docs/how_to/looking_inside.md')
    assert names['logits'].shape == (2, 3, 100)
    importance = names['importance']['encoder/layer_0/self_attention/z']
    # Michel et al. (2019) average absolute values: a signed mean is about 0.
    assert importance.shape == (4, 1) and (importance > 0).all()


def named(page):
    """Returns the names in the first column of a page's tables."""
    cells = re.findall(r'^\| (.*?) \|', pages.text(page), re.MULTILINE)
    return {name for cell in cells for name in re.findall(r'`([\w.]+)`', cell)}


def after_evidence(names):
    contrasts, margin = names['contrasts'], names['margin']
    arms = {arm: {} for pair in contrasts for arm in pair}
    for shown in (
        dict(arms=arms, base=next(iter(arms)), contrasts=contrasts, margin=margin),
        dict(arms=..., base='pre, two', factors=names['factors']),
        dict(tune=names['tune']),
    ):
        schema.load(write_sweep(Path(), **shown))


def after_nnx(names):

    def compare(found, expected):
        np.testing.assert_allclose(found, expected, atol=1e-6)

    jax.tree.map(compare, names['trained'], names['state'].params)
    module, x_BTD = names['attention'], names['x_BTD']
    projected = (project(x_BTD) for project in (module.query, module.key, module.value))
    y_BTHU = jax.nn.dot_product_attention(*projected, is_causal=True)
    compare(names['y_BTD'], module.out(y_BTHU))


CHECKS = {
    'docs/explanation/evidence.md': after_evidence,
    'docs/explanation/linen_and_nnx.md': after_nnx,
    'README.md': after_readme,
    'docs/how_to/looking_inside.md': after_looking_inside,
}


@pytest.mark.parametrize(
    'page',
    [
        pytest.param(page, marks=[pytest.mark.slow] * (page not in QUICK))
        for page in PAGES_WITH_PYTHON
    ],
)
def test_python_of_a_page_runs_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, code in pages.files(page).items():
        (tmp_path / name).write_text(code, encoding='utf-8')
        sys.modules.pop(name.removesuffix('.py'), None)
    names = {**PAGE_NAMES.get(page, {}), '__name__': 'page'}
    for code in pages.snippets(page):
        exec(compile(code, page, 'exec'), names)
    CHECKS.get(page, lambda names: None)(names)


def test_imports_of_pages_exist():
    for page in PAGES_WITH_PYTHON:
        own = {name.removesuffix('.py') for name in pages.files(page)}
        for node in ast.walk(ast.parse('\n'.join(pages.snippets(page)))):
            if isinstance(node, ast.ImportFrom) and node.module not in own:
                exec(ast.unparse(node), {})


class Parsed(Exception):
    """Raised once a command has parsed its flags."""


def stop_after(function):
    def wrapper(*args, **kwargs):
        raise Parsed(function(*args, **kwargs))

    return wrapper


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ('runs/wmt_small', 'docs/reference', 'my_text'):
        (tmp_path / name).mkdir(parents=True)
    for name in ('in.en', 'pairs.tsv', 'mono.de', 'my_text/train.en'):
        (tmp_path / name).touch()
    np.savez(tmp_path / 'frames.npz', a=np.ones((2, 8)))
    config = ExperimentConfig(tokenizer='huggingface(vocab_size=100)')
    for name in ('opus-mt-en-de', 't5_small'):
        converted = tmp_path / f'runs/{name}/config.json'
        converted.parent.mkdir()
        converted.write_text(json.dumps(load.to_store(config.to_dict())), 'utf-8')
    for page in pages.PAGES:
        for name, code in pages.files(page).items():
            (tmp_path / name).write_text(code, encoding='utf-8')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(flags, 'parse', stop_after(flags.parse))
    monkeypatch.setattr(
        argparse.ArgumentParser,
        'parse_args',
        stop_after(argparse.ArgumentParser.parse_args),
    )
    return tmp_path


def read(argv, monkeypatch):
    """Parses a command's flags; returns None if it only shows help."""
    dash_m, module, *rest = argv
    assert dash_m == '-m'
    assert importlib.util.find_spec(module), module
    if not rest:
        return None
    monkeypatch.setattr(sys, 'argv', [module, *rest])
    # What starts another process has read its own flags.
    monkeypatch.setattr(subprocess, 'Popen', stop_after(lambda *_, **__: None))
    try:
        importlib.import_module(module).main()
    except Parsed as parsed:
        return parsed.args[0]
    except SystemExit as leaving:
        assert '--help' in rest and leaving.code == 0
        return None
    raise AssertionError(f'{argv} has read no flags')


def check_read(found):
    if isinstance(found, tuple):
        settings = found[1]
        if settings.overrides.get('model.attention') == 'euclidean':
            return  # the reader writes this class
        check.check_overrides(settings.config, settings.overrides)
        components.build(settings.config, 100)
    elif hasattr(found, 'dry_run'):
        schema.load(found.config)
    elif getattr(found, 'sweep', None):
        schema.load(found.sweep)


@pytest.mark.parametrize(('page', 'command'), COMMANDS)
def test_commands_of_pages_have_existing_flags_and_fields(
    page, command, folder, monkeypatch
):
    refused = re.search(
        rf'^{re.escape(command)}\nerror: (.*)$', pages.text(page), re.MULTILINE
    )
    calls = pages.arguments(command, folder)
    assert calls
    for argv in calls:
        if refused:
            with pytest.raises(UserError, match=f'^{re.escape(refused[1])}$'):
                check_read(read(argv, monkeypatch))
        else:
            check_read(read(argv, monkeypatch))


PATH = re.compile(r'\b(?:flaxformer_lite|experiments|configs|tests|docs)/[\w/.-]+\.\w+')


@pytest.mark.parametrize('page', pages.PAGES)
def test_pages_name_existing_files(page):
    example = 'flaxformer_lite/attention/euclidean.py'  # the reader writes it
    for path in set(PATH.findall(pages.text(page))) - {example}:
        assert (pages.ROOT / path).exists(), path


@pytest.mark.parametrize('page', pages.PAGES)
def test_pages_install_existing_extras(page):
    project = tomllib.loads((pages.ROOT / 'pyproject.toml').read_text('utf-8'))
    extras = project['project']['optional-dependencies']
    for names in re.findall(r'\.\[([\w,]+)\]"', pages.text(page)):
        assert set(names.split(',')) <= set(extras)


def code_lines(code):
    found = set()
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    for token in tokens:
        if token.string.strip() and token.type != tokenize.COMMENT:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(found)


def test_page_of_tasks_states_the_lines_of_its_code():
    guide = 'docs/how_to/tasks.md'
    here, elsewhere = (
        dict(re.findall(row, pages.text(guide), re.MULTILINE))
        for row in (
            r'^\| ([^|]*) \| \[.*?\]\(.*?\) \| (\d+) \|$',
            r'^\| ([^|]*) \| (\d+) \| .* \| .* \|$',
        )
    )
    assert len(here) == 13 and here == elsewhere
    links = re.findall(
        r'^\| ([^|]*) \| \[.*?\]\((.*?)#(.*?)\)', pages.text(guide), re.MULTILINE
    )
    for task, page, anchor in links:
        page = os.path.normpath(os.path.join('docs/how_to', page or 'tasks.md'))
        sections = re.split('^## ', pages.text(page), flags=re.MULTILINE)
        of_anchor = [
            text
            for text in sections
            if re.sub('[^a-z -]', '', text.partition('\n')[0].lower()).replace(' ', '-')
            == anchor
        ]
        assert len(of_anchor) == 1, (page, anchor)
        code = [code for name, code in pages.FENCE.findall(of_anchor[0]) if name]
        assert sum(map(code_lines, code[:1])) == int(here[task]), task
