"""What takes seconds to make is found on disk by what it was made of, and only so."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from experiments.runtime import compilation, jax_cache, kept, mesh
from experiments.runtime.compilation import Program


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    folder = tmp_path / 'kept'
    folder.mkdir()
    monkeypatch.setattr(kept, '_folder', folder)
    return folder


class Traced:
    """A function that counts how often it is traced."""

    def __init__(self):
        self.times = 0

    def product(self, x, factor):
        self.times += 1
        return {'product': x * factor, 'sum': (x + factor).sum()}

    def program(self, made_of='product', **jitted):
        def product(x, factor):
            return self.product(x, factor)

        return Program(jax.jit(product, **jitted), made_of)


def numbers(size=6):
    return jnp.arange(float(size)), jnp.float32(2.5)


def expected(size=6):
    x = np.arange(float(size), dtype=np.float32)
    return {'product': x * np.float32(2.5), 'sum': (x + np.float32(2.5)).sum()}


def equal(found, reference):
    jax.tree.map(np.testing.assert_array_equal, found, reference)


def test_a_program_is_found_before_anything_is_traced():
    traced = Traced()
    for _ in range(3):
        equal(traced.program()(*numbers()), expected())
    assert traced.times == 1


def test_a_program_is_compiled_once_for_each_shape():
    traced = Traced()
    program = traced.program()
    for size in (6, 7, 6, 7):
        equal(program(*numbers(size)), expected(size))
    assert traced.times == 2


def test_what_it_was_made_of_tells_programs_apart():
    traced = Traced()
    for made_of in ('product', ('product', 2), ('product', 3.0)):
        traced.program(made_of)(*numbers())
    assert traced.times == 3


def test_other_settings_and_other_sources_are_other_programs(monkeypatch):
    traced = Traced()
    traced.program()(*numbers())
    with jax.default_matmul_precision('float32'):
        traced.program()(*numbers())
    assert traced.times == 2
    monkeypatch.setattr(kept, '_of_this_process', lambda: 'a file was edited')
    traced.program()(*numbers())
    assert traced.times == 3


def test_a_source_that_was_edited_added_or_renamed_changes_the_sum(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(kept.experiments, '__path__', [str(tmp_path)])
    sums = [kept.sources()]
    (tmp_path / 'a.py').write_text('x = 1\n')
    sums.append(kept.sources())
    (tmp_path / 'a.py').write_text('x = 2\n')
    sums.append(kept.sources())
    (tmp_path / 'a.py').rename(tmp_path / 'b.py')
    sums.append(kept.sources())
    assert len(set(sums)) == 4 and sums[-1] == kept.sources()


def test_what_does_not_say_what_it_holds_is_not_kept(folder):
    traced = Traced()
    for _ in range(2):
        traced.program(made_of=object())(*numbers())
    assert traced.times == 2 and not list(folder.iterdir())


def test_without_a_folder_nothing_is_kept(folder, monkeypatch):
    monkeypatch.setattr(kept, '_folder', None)
    traced = Traced()
    for _ in range(2):
        equal(traced.program()(*numbers()), expected())
    assert traced.times == 2 and not list(folder.iterdir())


@pytest.mark.parametrize('cut', [0, 10, 100, -1])
def test_a_damaged_program_is_named_and_made_again(folder, capsys, cut):
    traced = Traced()
    traced.program()(*numbers())
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:cut])
    equal(traced.program()(*numbers()), expected())
    said = capsys.readouterr().err
    assert said.count('\n') == 1
    assert f'{file} is damaged (it is not what was written)' in said
    traced.program()(*numbers())
    assert traced.times == 2 and capsys.readouterr().err == ''


def test_a_flipped_bit_is_damage(folder, capsys):
    kept.kept('x', 'x', lambda: list(range(100)))
    (file,) = folder.iterdir()
    whole = bytearray(file.read_bytes())
    whole[50] ^= 1
    file.write_bytes(whole)
    assert kept.kept('x', 'x', lambda: 'made again') == 'made again'
    assert 'is damaged' in capsys.readouterr().err


def test_what_jax_cannot_load_is_made_again(folder, capsys):
    def refused(data):
        raise RuntimeError('compiled for another machine')

    kept.kept('x', 'x', lambda: 1)
    assert kept.kept('x', 'x', lambda: 2, from_bytes=refused) == 2
    assert 'compiled for another machine' in capsys.readouterr().err
    assert kept.kept('x', 'x', lambda: 3) == 2


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, monkeypatch, capsys):
    file = tmp_path / 'file'
    file.touch()
    monkeypatch.setattr(kept, '_folder', file)
    assert kept.kept('x', 'x', lambda: 1) == 1
    said = capsys.readouterr().err
    assert said.startswith('warning: cannot') and said.count('\n') <= 2


def test_what_making_raises_is_raised_and_nothing_is_written(folder):
    def fail():
        raise ValueError('no such model')

    with pytest.raises(ValueError, match='no such model'):
        kept.kept('x', 'x', fail)
    assert not list(folder.iterdir())


def test_outputs_are_known_without_tracing():
    traced = Traced()
    x, factor = numbers()
    for _ in range(2):
        outputs = compilation.outputs(traced.product, 'product', x, factor)
        assert outputs['product'] == jax.ShapeDtypeStruct((6,), jnp.float32)
        assert outputs['sum'] == jax.ShapeDtypeStruct((), jnp.float32)
    assert traced.times == 1


def test_a_program_from_disk_takes_over_what_is_donated():
    traced = Traced()
    for _ in range(2):
        x, factor = numbers()
        traced.program(donate_argnums=0)(x, factor)
        assert x.is_deleted() and not factor.is_deleted()
    assert traced.times == 1


def test_a_program_from_disk_divides_rows_among_devices():
    assert jax.device_count() == 4
    traced = Traced()
    devices = mesh.of()
    x, factor = numbers(8)
    placed = (
        jax.device_put(x, devices.rows()),
        jax.device_put(factor, devices.everywhere()),
    )
    for _ in range(2):
        found = traced.program()(*placed)
        equal(found, expected(8))
        assert found['product'].sharding == devices.rows()
    traced.program()(x, factor)  # on one device it is another program
    assert traced.times == 2


def test_a_mesh_in_context_tells_programs_apart():
    traced = Traced()
    auto = (jax.sharding.AxisType.Auto,)
    alone = jax.make_mesh((1,), ('data',), auto, devices=jax.devices()[:1])
    for _ in range(2):
        traced.program()(*numbers())
        with jax.set_mesh(alone):
            equal(traced.program()(*numbers()), expected())
    assert traced.times == 2


def test_what_is_divided_among_devices_is_traced_with_their_mesh_in_context():
    found = []

    def double(x):
        found.append(jax.sharding.get_abstract_mesh())
        return 2 * x

    x, _ = numbers(8)
    for placed in (jax.device_put(x, mesh.of().rows()), x):
        Program(jax.jit(double), 'double')(placed)
    assert found[0] == mesh.of().rows().mesh.abstract_mesh and found[1].empty


def test_threads_that_ask_at_once_share_one_compilation():
    traced = Traced()
    program = traced.program()
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(program(*numbers())))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert traced.times == 1 and len(found) == 8
    for result in found:
        equal(result, expected())


@pytest.fixture
def jax_folder(tmp_path):
    """JAX's own cache, in a folder."""
    names = [name for name in jax.config.values if 'persistent_cache' in name]
    before = {name: jax.config.values[name] for name in names}
    before['jax_compilation_cache_dir'] = jax.config.values['jax_compilation_cache_dir']
    folder = tmp_path / 'jax'
    jax_cache.keep(folder)
    compilation_cache.reset_cache()
    yield folder
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


TWICE = """
import sys
from pathlib import Path
import jax, jax.numpy as jnp
from experiments.runtime import kept, jax_cache
from experiments.runtime.compilation import Program, compiled
folder = Path(sys.argv[1])
jax_cache.keep(folder / 'jax')
kept.use(folder / 'kept')
x = jnp.arange(4096.0).reshape(64, 64) / 1e5

def product(x):
    products = [jnp.cumsum(jnp.roll(x, i) @ x, axis=0)[i:] for i in range(12)]
    return sum(jnp.sum(jnp.tanh(y) ** 2, axis=0) for y in products)

if sys.argv[2] == 'by JAX':
    found = compiled(jax.jit(product), x)(x)
else:
    found = Program(jax.jit(product), 'product')(x)
print(found.tolist())
"""


def test_a_program_that_jax_kept_is_compiled_all_the_same(tmp_path):
    """What JAX reads from its cache cannot be written again: it lacks its code."""
    environment = {k: v for k, v in os.environ.items() if k != 'XLA_FLAGS'}
    said = set()
    for way in ('by JAX', 'kept', 'kept'):
        done = subprocess.run(
            [sys.executable, '-c', TWICE, str(tmp_path), way],
            env=environment,
            capture_output=True,
            encoding='utf-8',
        )
        assert done.returncode == 0, done.stderr
        said.add(done.stdout)
    assert len(said) == 1
    assert len(list((tmp_path / 'kept').iterdir())) == 1
    assert list((tmp_path / 'jax').glob('jit_product-*'))


def test_jax_keeps_other_programs_as_before(jax_folder):
    Traced().program()(*numbers())
    jax.jit(lambda x: 2.5 * x + 1)(np.float32(3))
    names = [file.name for file in jax_folder.iterdir()]
    assert any('lambda' in name for name in names)
    assert not any('product' in name for name in names)


def test_names_tell_what_is_kept(folder):
    Traced().program()(*numbers())
    (file,) = folder.iterdir()
    assert Path(file).name.startswith('product-')


def test_what_was_used_longest_ago_goes_first_where_there_is_no_room(
    folder, monkeypatch
):
    def made(name):
        return kept.kept(name, 0, lambda: name)

    for second, name in enumerate(('old', 'middle', 'new')):
        made(name)
        (file,) = folder.glob(f'{name}-*')
        os.utime(file, (second, second))
    made('old')  # is used again, and so no longer the oldest
    sizes = [file.stat().st_size for file in folder.iterdir()]
    monkeypatch.setattr(kept, 'MOST_BYTES', sum(sizes))
    made('newest')
    names = {file.name.partition('-')[0] for file in folder.iterdir()}
    assert names == {'old', 'new', 'newest'}
