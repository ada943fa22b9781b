"""Tests of the installed package."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# `import flaxformer_lite` loads these and their dependencies, and nothing else.
LIBRARIES = ('jax', 'flax', 'optax')


def run(*command, cwd, **variables):
    # Another version of XLA may reject the flags of this one.
    without = ('PYTHONPATH', 'XLA_FLAGS')
    environment = {k: v for k, v in os.environ.items() if k not in without}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def modules_after(statement):
    code = f'import sys\n{statement}\nprint(*sorted(sys.modules))'
    printed = run(sys.executable, '-c', code, cwd=ROOT, JAX_PLATFORMS='cpu')
    return set(printed.splitlines()[-1].split())


def test_library_loads_only_jax_flax_and_optax():
    # Including their dependencies: Flax imports Orbax, for instance.
    libraries = modules_after(f'import {", ".join(LIBRARIES)}')
    libraries |= modules_after('import flax.linen, flax.struct, flax.traverse_util')
    # The import is lazy, but `*` uses all names.
    found = modules_after('from flaxformer_lite import *') - libraries
    roots = {module.split('.')[0] for module in found}
    assert roots <= {'flaxformer_lite', *LIBRARIES} | sys.stdlib_module_names
    assert 'flaxformer_lite.training.train_step' in found


README_EXAMPLES = """
import importlib.util, re, sys
from importlib import metadata
from pathlib import Path

import flaxformer_lite

readme = Path(sys.argv[1]).read_text('utf-8')
section = readme.partition('\\n## Python\\n')[2].partition('\\n## ')[0]
examples = re.findall(r'```python\\n(.*?)```', section, re.DOTALL)
assert len(examples) == 1, examples
names = {}
for example in examples:
    exec(example, names)
assert names['logits'].shape == (2, 3, 8_000)
import flaxformer_checkpoints, flaxformer_explain.explanations
assert 'site-packages' in flaxformer_lite.__file__, flaxformer_lite.__file__
assert metadata.version('flaxformer-lite') == flaxformer_lite.__version__
for name in ('experiments', 'configs', 'parallel_grammar'):
    assert importlib.util.find_spec(name) is None, name
"""


def wheel(folder):
    run(
        *(sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-deps'),
        *('--wheel-dir', folder, ROOT),
        cwd=folder,
    )
    (file,) = folder.glob('*.whl')
    return file


def extras():
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text('utf-8'))['project']
    return project['optional-dependencies']


def test_install_table_lists_the_extras_of_the_wheel():
    page = ROOT / 'docs/how_to/install.md'
    table = page.read_text('utf-8').partition('## Extras')[2]
    named = {'yes': set(), 'no': set()}
    for commands, has_it in re.findall(r'\| ([^|]*) \| (yes|no) \|', table):
        quoted = ' '.join(re.findall('`(.*?)`', commands))
        named[has_it] |= set(re.findall(r'\w+', quoted)) & extras().keys()
    assert named['yes'] | named['no'] == extras().keys()
    # Extras of the library need nothing of the runner.
    assert named['yes'] == {'cuda12', 'cuda13', 'tpu', 'pretrained'}
    for name in named['yes']:
        assert not any('flaxformer-lite[' in package for package in extras()[name])


@pytest.mark.slow
def test_wheel_contains_the_library_and_runs_the_readme_examples(tmp_path):
    file = wheel(tmp_path)
    names = zipfile.ZipFile(file).namelist()
    roots = {name.split('/')[0] for name in names}
    (info,) = roots - {
        'flaxformer_lite',
        'flaxformer_checkpoints',
        'flaxformer_explain',
    }
    assert re.fullmatch(r'flaxformer_lite-[\d.]+\.dist-info', info)
    assert 'flaxformer_lite/py.typed' in names
    metadata = zipfile.ZipFile(file).read(f'{info}/METADATA').decode()
    provided = re.findall('^Provides-Extra: (.*)$', metadata, re.MULTILINE)
    assert set(provided) == extras().keys()
    modules = {str(p.relative_to(ROOT)) for p in ROOT.glob('flaxformer_lite/**/*.py')}
    modules |= {
        str(path.relative_to(ROOT / 'packages'))
        for part in ('*', '*/families', '*/loading', '*/explanations')
        for path in ROOT.glob(f'packages/flaxformer_{part}/*.py')
        if part != '*' or path.stem == '__init__'
    }
    assert modules == {name for name in names if name.endswith('.py')}

    environment = tmp_path / 'venv'
    run(sys.executable, '-m', 'venv', environment, cwd=tmp_path)
    python = environment / 'bin' / 'python'
    # Most modules are never imported here, so bytecode would waste time.
    run(
        *(python, '-m', 'pip', 'install', '--quiet', '--no-compile', file),
        cwd=tmp_path,
    )
    script = tmp_path / 'examples.py'
    script.write_text(README_EXAMPLES, 'utf-8')
    run(python, script, ROOT / 'README.md', cwd=tmp_path, JAX_PLATFORMS='cpu')
