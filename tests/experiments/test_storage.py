"""Tests of atomic files, stored JSON, caches and exclusive locks."""

import contextlib
import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from experiments import storage
from experiments.errors import UserError


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_write_replaces_the_whole_file_and_creates_folders(tmp_path):
    path = tmp_path / 'a' / 'b.txt'
    storage.write(path, 'grün\r\n')
    assert path.read_bytes() == b'gr\xc3\xbcn\r\n'
    storage.write(path, b'\x00')
    assert path.read_bytes() == b'\x00'
    assert names(path.parent) == ['b.txt']
    for data in (b'mine', b' and more'):
        storage.append(tmp_path / 'log', data)
    assert (tmp_path / 'log').read_text() == 'mine and more'


def test_output_is_written_through_links_pipes_and_devices(tmp_path):
    file, link = tmp_path / 'file', tmp_path / 'link'
    link.symlink_to('file')
    storage.write_output(link, 'new')  # creates the file
    storage.write_output(link, 'newer')
    assert file.read_text() == 'newer' and link.is_symlink()
    storage.write_output(file, b'bytes')
    assert file.read_bytes() == b'bytes'

    pipe = tmp_path / 'pipe'
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), 'rb') as reader:
        storage.write_output(pipe, 'through')
        assert reader.read() == b'through'
    assert pipe.is_fifo()
    null = tmp_path / 'null'
    null.symlink_to(os.devnull)
    storage.write_output(null, 'gone')
    storage.write_output(Path(os.devnull), 'gone')
    assert null.is_symlink() and Path(os.devnull).is_char_device()
    with pytest.raises(UserError, match='cannot write .*: Is a directory'):
        storage.write_output(tmp_path, 'x')
    assert names(tmp_path) == ['file', 'link', 'null', 'pipe']


def test_failed_write_keeps_the_old_file_and_leaves_no_folder(tmp_path):
    path = tmp_path / 'file'
    storage.write(path, 'old')
    with pytest.raises(ZeroDivisionError):
        with storage.replacing(path) as temporary:
            temporary.write_text('new')
            raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        with storage.replacing(tmp_path / 'a' / 'b' / 'file'):
            raise ZeroDivisionError
    with pytest.raises(UserError, match='cannot write .*file/inner'):
        storage.write(path / 'inner', 'x')
    assert path.read_text() == 'old'
    assert names(tmp_path) == ['file']


@pytest.mark.skipif(os.name != 'posix', reason='needs the limits of POSIX')
def test_full_disk_keeps_the_old_file(tmp_path):
    import resource

    path = tmp_path / 'file'
    storage.write(path, 'old')
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(UserError, match='cannot write .*file: File too large'):
            storage.write(path, 'x' * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == 'old'
    assert names(tmp_path) == ['file']


def test_folder_appears_with_all_its_files(tmp_path):
    with storage.replacing(tmp_path / 'cache') as temporary:
        (temporary / 'inner').mkdir(parents=True)
        (temporary / 'inner' / 'a').write_text('a')
        assert not (tmp_path / 'cache').exists()
    assert (tmp_path / 'cache' / 'inner' / 'a').read_text() == 'a'
    with pytest.raises(UserError, match='cannot write .*cache'):
        with storage.replacing(tmp_path / 'cache') as temporary:
            temporary.mkdir()
    assert names(tmp_path) == ['cache']


def test_json_is_indented_and_equal_for_equal_values(tmp_path):
    path = tmp_path / 'a.json'
    storage.write_json(path, {'b': [1, None], 'a': 'ä'})
    assert path.read_text(encoding='utf-8') == (
        '{\n  "a": "ä",\n  "b": [\n    1,\n    null\n  ]\n}\n'
    )
    assert storage.read_json(path) == {'a': 'ä', 'b': [1, None]}
    storage.write_json(path, {'a': float('nan'), 'b': [float('inf'), (-math.inf, 1.5)]})
    stored = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert stored == {'a': None, 'b': [None, [None, 1.5]]}


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (b'\xff', 'a.json is not JSON'),
        (b'[' * 200_000, 'a.json is not JSON: maximum recursion depth'),
        (None, 'cannot read .*a.json: No such file'),
    ],
    ids=['encoding', 'depth', 'missing'],
)
def test_unreadable_json_is_a_user_error(tmp_path, content, message):
    path = tmp_path / 'a.json'
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        storage.read_json(path)


def test_json_of_another_type_is_rejected_with_its_place_and_fix(tmp_path):
    path = tmp_path / 'a.json'
    storage.write_json(path, {'a': [1, '2'], 'b': None})
    assert storage.read_json(path, dict[str, list | None])['a'] == [1, '2']
    with pytest.raises(UserError) as error:
        storage.read_json(path, dict[str, list[int]], 'Remove it.')
    assert str(error.value) == f'{path}: [...][1]: expected int, got str. Remove it.'
    with pytest.raises(UserError) as error:
        storage.check_type('a row', [{'x': 1.5}], list[dict[str, int]], within='rows')
    assert str(error.value) == 'a row: rows[0][...]: expected int, got float.'
    with pytest.raises(UserError, match='the content: expected array, got object.$'):
        storage.read_json(path, list)


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    code = (
        'import os, pathlib, sys\nfrom experiments import storage\n'
        'with storage.replacing(pathlib.Path(sys.argv[1]) / "folder") as draft:\n'
        '    draft.mkdir()\n    (draft / "a").write_text("half")\n    os._exit(1)'
    )
    subprocess.run([sys.executable, '-c', code, str(tmp_path)])
    (tmp_path / 'a.tmp').write_text('of another program')
    assert len(names(tmp_path)) == 2
    storage.remove_leftovers(tmp_path)
    assert names(tmp_path) == ['a.tmp']
    storage.remove_leftovers(tmp_path / 'missing')


def make_cache(folder):
    (folder / 'a').write_bytes(b'abc')
    (folder / 'b').write_bytes(b'')


def test_cache_folder_is_made_once(tmp_path):
    folder = tmp_path / 'cache'
    leftover = folder.with_name(f'.{folder.name}.1.tmp')
    leftover.mkdir()
    storage.cache_folder(folder, make_cache)
    assert not leftover.exists()
    storage.cache_folder(folder, pytest.fail)
    assert (folder / 'a').read_bytes() == b'abc'


def test_failed_cache_folder_is_absent(tmp_path):
    def fail(folder):
        make_cache(folder)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        storage.cache_folder(tmp_path / 'cache', fail)
    assert names(tmp_path) == ['.cache.lock']


def test_one_of_several_threads_makes_a_cache_folder(tmp_path):
    calls = []

    def make(folder):
        calls.append(folder)
        make_cache(folder)

    threads = [
        threading.Thread(target=storage.cache_folder, args=(tmp_path / 'cache', make))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


def test_lock_is_exclusive_and_ends_with_its_process(tmp_path):
    file = tmp_path / 'run' / '.lock'
    assert storage.is_free(file)
    with storage.lock(file):
        assert not storage.is_free(file)
        message = f'run is in use by process {os.getpid()} on .*--workdir'
        with pytest.raises(storage.InUse, match=message):
            with storage.lock(file):
                pass
    assert storage.is_free(file)
    code = 'import sys; from experiments import storage; from pathlib import Path\n'
    code += 'with storage.lock(Path(sys.argv[1])): print(flush=True); input()'
    command = [sys.executable, '-c', code, str(file)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        assert not storage.is_free(file)
        other.kill()  # the system releases its lock
    with storage.lock(file, wait=True), contextlib.suppress(ValueError):
        raise ValueError
    with pytest.raises(UserError, match='cannot write .*inner'):
        with storage.lock(file / 'inner'):
            pass
