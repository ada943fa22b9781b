"""Tests that the commands of README and docs/ run, with short training."""

import importlib.util
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pages
import published_tokenizers
import pytest
import small_runs

pytestmark = pytest.mark.slow

PAGES_WITH_COMMANDS = [
    page
    for page in pages.PAGES
    if page.startswith(('README', 'docs')) and pages.commands(page)
]
SHRUNK = pages.ROOT / 'tests' / 'small_runs.py'
# In a page's commands, pip does nothing and Python is `small_runs.py`.
SHELL = f'pip() {{ :; }}; python() {{ "{sys.executable}" "{SHRUNK}" "$@"; }}; '
# Commands that take hours, need a file of the page, or have a separate test.
SKIPPED_COMMANDS = (
    '--sweep=configs/sweeps/',
    'benchmarks.',
    'flaxformer_explain.demo',  # a server that runs until it is stopped
    'euclidean',  # the last test writes this file
    'experiments.config.schema',
)
if importlib.util.find_spec('ctranslate2') is None:  # not in the extra `test`
    SKIPPED_COMMANDS += ('--to=ctranslate2',)


def run(command, folder, root=pages.ROOT):
    environment = os.environ | {
        'PYTHONPATH': os.pathsep.join([str(root), str(root / 'tests')]),
        'FLAXFORMER_LITE_CACHE': str(folder.parent / 'cache'),
    }
    done = subprocess.run(
        ['bash', '-euc', SHELL + command.removeprefix('$ ')],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp('page')
    for name in ('my_text', 'multi30k'):
        (folder / name).mkdir()
        small_runs.write_text(folder / name, val=4, test=4, test_2016_flickr=4)
    (folder / 'cogs').mkdir()
    small_runs.write_text(folder / 'cogs', val=4, test=4, gen=4)
    for file in (folder / 'cogs').glob('*.de'):
        file.rename(file.with_suffix('.lf'))
    (folder / 'in.en').write_text('Tom sleeps.\n', encoding='utf-8')
    for name in ('in.de', 'mono.de'):
        (folder / name).write_text('Tom schläft.\n', encoding='utf-8')
    for name in ('train', 'val'):
        sides = [
            (folder / f'my_text/{name}.{language}').read_text('utf-8').splitlines()
            for language in ('en', 'de')
        ]
        lines = ['word\tsounds', *map('\t'.join, zip(*sides, strict=True))]
        (folder / f'{name}.tsv').write_text('\n'.join(lines) + '\n', 'utf-8')
    (folder / 'pairs.tsv').write_text('Tom sleeps.\tTom schläft.\n', 'utf-8')
    checkpoints = {'opus-mt-en-de': 'marian', 'nllb': 'nllb'}
    # Folders with the names of published checkpoints need no network.
    checkpoints |= dict.fromkeys(
        ('google-t5/t5-small', 'google-t5/t5-small@main'), 't5'
    )
    for name, like in checkpoints.items():
        published_tokenizers.checkpoint(like, folder / name)
    gemma = published_tokenizers.checkpoint('t5gemma', folder / 'google/gemma-3-270m')
    families = published_tokenizers.GOLDENS / 'families'
    shutil.copytree(families / 'gemma3', gemma, dirs_exist_ok=True)
    (folder / 'results').symlink_to(pages.ROOT / 'results')
    status, printed = run(pages.commands('README.md')[0], folder)
    assert status == 0, printed
    assert (folder / 'runs/wmt_small/result.json').exists()
    return folder


def test_readme_commands_lead_from_a_clone_to_a_report_on_user_text(
    tmp_path, monkeypatch
):
    readme = pages.text('README.md').splitlines()
    (clone,) = [line for line in readme if line.startswith('git clone ')]
    guide = pages.commands('docs/tutorials/first_run.md')
    (report,) = [line for line in guide if line.endswith(' --out=report')]
    # Git clones this checkout instead of the repository on the page.
    monkeypatch.setenv('GIT_CONFIG_COUNT', '1')
    monkeypatch.setenv('GIT_CONFIG_KEY_0', f'url.{pages.ROOT}.insteadOf')
    monkeypatch.setenv('GIT_CONFIG_VALUE_0', clone.split()[2])
    root = tmp_path / 'flaxformer_lite'
    status, printed = run(clone, tmp_path, root)
    assert status == 0, printed
    (root / 'my_text').mkdir()
    small_runs.write_text(root / 'my_text', val=4)
    for command in (*pages.commands('README.md')[:2], report):
        begun = time.monotonic()
        status, printed = run(command, root, root)
        assert status == 0, (command, printed)
        print(f'{time.monotonic() - begun:.0f} s: {command}')
    assert 'my_text' in (root / 'report/index.html').read_text('utf-8')


def shortened(name, code):
    """Returns a file of a page; a sweep gets short runs."""
    if 'get_config' not in code:
        return code
    fields = small_runs.FIELDS | {'data': 'grammar(pairs=150)', 'train.steps': 2}
    del fields['model.num_heads']
    fields |= {'evaluation.every': 2, 'evaluation.decode': 'greedy'}
    assert code.count('overrides={') == 1, name
    code = code.replace('seeds=(0, 1, 2)', 'seeds=(0, 1)')
    return code.replace('overrides={', f'overrides={fields} | {{')


@pytest.mark.parametrize('page', PAGES_WITH_COMMANDS)
def test_commands_of_a_page_run(page, trained, tmp_path):
    folder = tmp_path / 'page'
    shutil.copytree(trained, folder, symlinks=True)
    for name, code in pages.files(page).items():
        (folder / name).write_text(shortened(name, code), encoding='utf-8')
        if f'python {name}\n' in pages.text(page):
            status, printed = run(f'python {name}', folder)
            assert status == 0, printed
    for command in pages.commands(page):
        bare = command.partition(' -m ')[2].count(' ') == 0 and '=' not in command
        if bare or any(part in command for part in SKIPPED_COMMANDS):
            continue
        status, printed = run(command, folder)
        assert status == (2 if command.startswith('$ ') else 0), (command, printed)


def run_snippets(page):
    return [x for name, x in pages.FENCE.findall(pages.text(page)) if name == 'py']


@pytest.fixture
def trained_run_folder(trained, monkeypatch):
    monkeypatch.chdir(trained)
    monkeypatch.setenv('FLAXFORMER_LITE_CACHE', str(trained.parent / 'cache'))


@pytest.mark.usefixtures('trained_run_folder')
def test_alignment_snippet_runs_with_a_trained_run():
    page = 'docs/packages/flaxformer_explain/translations.md'
    (code,) = run_snippets(page)
    names = {}
    exec(compile(code, page, 'exec'), names)
    found = names['looking'].alignment(*map(names.get, ('run', 'text', 'translation')))
    assert list(found) == ['layer 0']


@pytest.mark.usefixtures('trained_run_folder')
def test_exported_program_translates_with_jax_alone():
    page = 'docs/how_to/export.md'
    exporting, calling = run_snippets(page)
    names = {}
    exec(compile(exporting, page, 'exec'), names)
    calling += """
import sys
assert not {'flax', 'flaxformer_lite', 'experiments'} & sys.modules.keys()
np.savez('called.npz', source=source_BS, tokens=tokens_BT)
"""
    subprocess.run([sys.executable, '-W', 'error', '-c', calling], check=True)
    with np.load('called.npz') as called:
        expected = names['generate'](called['source'])
        np.testing.assert_array_equal(called['tokens'], expected)
    assert expected[0].any()


def test_attention_of_the_tutorial_passes_its_contracts_and_reference_formula(tmp_path):
    root = tmp_path / 'project'
    packages = ('flaxformer_lite', 'experiments', 'packages', 'configs')
    for name in (*packages, 'tests'):
        shutil.copytree(pages.ROOT / name, root / name)
    shutil.copy(pages.ROOT / 'pyproject.toml', root)
    guide = 'docs/tutorials/own_component.md'
    code = pages.files(guide)['my_parts.py']
    assert code == pages.files('README.md')['my_parts.py']
    base = 'from flaxformer_lite.attention.base import Attention'
    code = code.replace('import flaxformer_lite as fl', base)
    code = code.replace('fl.attention.Attention', 'Attention')
    file = root / 'flaxformer_lite/attention/euclidean.py'
    file.write_text(code, encoding='utf-8')
    (formula,) = [
        code for name, code in pages.FENCE.findall(pages.text(guide)) if name == 'py'
    ]
    tests = root / 'tests/flaxformer_lite/test_attention.py'
    text = tests.read_text('utf-8')
    formulas = '\nREFERENCE_FORMULAS = {\n'
    assert text.count(formulas) == 1
    tests.write_text(text.replace(formulas, formulas + formula), 'utf-8')
    commands = pages.commands(guide)
    (checking,) = [command for command in commands if 'euclidean' in command]
    (testing,) = [x for x in pages.text(guide).splitlines() if x.startswith('pytest ')]
    for command in (checking, f'"{sys.executable}" -m {testing}'):
        status, printed = run(command, root, root)
        assert status == 0, (command, printed)
    assert ' passed' in printed
