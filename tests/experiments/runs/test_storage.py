"""Tests of atomic files, self-repairing caches and exclusive locks."""

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


def test_a_file_is_written_whole_and_its_folders_made(tmp_path):
    path = tmp_path / 'a' / 'b.txt'
    storage.write(path, 'grün\r\n')
    assert path.read_bytes() == b'gr\xc3\xbcn\r\n'
    storage.write(path, b'\x00')
    assert path.read_bytes() == b'\x00'
    assert [p.name for p in path.parent.iterdir()] == ['b.txt']


def test_an_output_goes_through_links_and_into_what_is_no_file(tmp_path):
    file, link = tmp_path / 'file', tmp_path / 'link'
    link.symlink_to('file')
    storage.write_output(link, 'new')  # and makes the file
    storage.write_output(link, 'newer')
    assert file.read_text() == 'newer' and link.is_symlink()
    storage.write_output(file, b'as by write')
    assert file.read_bytes() == b'as by write'

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
    assert {p.name for p in tmp_path.iterdir()} == {'file', 'link', 'pipe', 'null'}


def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / 'file'
    storage.write(path, 'old')
    with pytest.raises(ZeroDivisionError):
        with storage.replacing(path) as temporary:
            temporary.write_text('new')
            raise ZeroDivisionError
    assert path.read_text() == 'old'
    assert [p.name for p in tmp_path.iterdir()] == ['file']


def test_what_fails_leaves_no_new_folder(tmp_path):
    with pytest.raises(ZeroDivisionError):
        with storage.replacing(tmp_path / 'a' / 'b' / 'file'):
            raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_a_folder_appears_with_all_that_is_in_it(tmp_path):
    with storage.replacing(tmp_path / 'cache') as temporary:
        (temporary / 'inner').mkdir(parents=True)
        (temporary / 'inner' / 'a').write_text('a')
        assert not (tmp_path / 'cache').exists()
    assert (tmp_path / 'cache' / 'inner' / 'a').read_text() == 'a'
    with pytest.raises(UserError, match='cannot write .*cache'):
        with storage.replacing(tmp_path / 'cache') as temporary:
            temporary.mkdir()
    assert [p.name for p in tmp_path.iterdir()] == ['cache']


def test_a_place_that_cannot_be_written_to_is_a_user_error(tmp_path):
    (tmp_path / 'file').write_text('mine')
    with pytest.raises(UserError, match='cannot write .*file/inner'):
        storage.write(tmp_path / 'file' / 'inner', 'x')
    assert (tmp_path / 'file').read_text() == 'mine'


@pytest.mark.skipif(os.name != 'posix', reason='limits as POSIX has them')
def test_a_full_disk_leaves_the_old_file(tmp_path):
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
    assert [p.name for p in tmp_path.iterdir()] == ['file']


def test_json_is_readable_and_the_same_for_equal_values(tmp_path):
    path = tmp_path / 'a.json'
    storage.write_json(path, {'b': [1, None], 'a': 'ä'})
    assert path.read_text(encoding='utf-8') == (
        '{\n  "a": "ä",\n  "b": [\n    1,\n    null\n  ]\n}\n'
    )
    assert storage.read_json(path) == {'a': 'ä', 'b': [1, None]}
    path.write_bytes(b'\xff')
    with pytest.raises(UserError, match='a.json is not JSON'):
        storage.read_json(path)
    with pytest.raises(UserError, match='cannot read .*none.json: No such file'):
        storage.read_json(tmp_path / 'none.json')


def test_a_number_that_is_not_finite_is_null(tmp_path):
    path = tmp_path / 'a.json'
    storage.write_json(path, {'a': float('nan'), 'b': [float('inf'), (-math.inf, 1.5)]})
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {
        'a': None,
        'b': [None, [None, 1.5]],
    }


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / 'a.json'
    with path.open('wb') as file:
        file.truncate(2**31)
    with pytest.raises(UserError, match='cannot read .*a.json: File too large'):
        storage.read_json(path)


def test_what_killed_processes_have_left_is_removed(tmp_path):
    code = (
        'import os, pathlib, sys\nfrom experiments import storage\n'
        'with storage.replacing(pathlib.Path(sys.argv[1]) / "folder") as draft:\n'
        '    draft.mkdir()\n    (draft / "a").write_text("half")\n    os._exit(1)'
    )
    subprocess.run([sys.executable, '-c', code, str(tmp_path)])
    (tmp_path / 'a.tmp').write_text('of others')
    assert len(list(tmp_path.iterdir())) == 2
    storage.remove_leftovers(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ['a.tmp']
    storage.remove_leftovers(tmp_path / 'missing')


# Caches.


def make_cache(folder):
    (folder / 'a').write_bytes(b'abc')
    (folder / 'b').write_bytes(b'')


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def written(content):
    return lambda path: path.write_bytes(content)


SUM = b'0' * 64
NOT_SUMS = [
    *(b'', b'a', b'\n', b'garbage\n', SUM + b'\n', SUM + b'  \n', SUM + b'  .\n'),
    *(SUM + b'  \0\n', SUM + b'  ../a\n', b'\xff' * 80 + b'\n', b'x' * 9000 + b'\n'),
    *(SUM + b'  ' + b'x' * 5000 + b'\n', SUM[1:] + b'z  a\n'),
]


@pytest.mark.parametrize(
    ('name', 'harm'),
    [
        *(('a', flip), ('a', cut), ('a', Path.unlink)),
        *((storage.SUMS, flip), (storage.SUMS, Path.unlink)),
        *((storage.SUMS, written(content)) for content in NOT_SUMS),
    ],
)
def test_a_damaged_folder_of_a_cache_is_named_and_made_again(
    tmp_path, capsys, name, harm
):
    folder = tmp_path / 'cache'
    leftover = folder.with_name(f'.{folder.name}.1.tmp')
    leftover.mkdir()
    storage.cache_folder(folder, make_cache)
    assert not leftover.exists()
    storage.cache_folder(folder, pytest.fail)  # what is whole is not made again
    assert capsys.readouterr().err == ''
    harm(folder / name)
    storage.cache_folder(folder, make_cache)
    said = capsys.readouterr().err
    assert str(folder) in said and said.count('\n') == 1
    assert (folder / 'a').read_bytes() == b'abc'
    assert storage.damage(folder / storage.SUMS) == ''
    check = ['sha256sum', '--check', '--strict', '--quiet', storage.SUMS]
    subprocess.run(check, cwd=folder, check=True)


def test_what_cannot_be_read_is_not_made_again(tmp_path):
    storage.cache_folder(tmp_path / 'cache', make_cache)
    (tmp_path / 'cache' / 'a').unlink()
    (tmp_path / 'cache' / 'a').mkdir()  # reading it fails, as without permission
    with pytest.raises(UserError, match='cannot read .*a: Is a directory'):
        storage.cache_folder(tmp_path / 'cache', pytest.fail)


def test_of_several_that_want_a_folder_one_makes_it(tmp_path):
    made = []

    def make(folder):
        made.append(folder)
        make_cache(folder)

    wanting = [
        threading.Thread(target=storage.cache_folder, args=(tmp_path / 'cache', make))
        for _ in range(8)
    ]
    for thread in wanting:
        thread.start()
    for thread in wanting:
        thread.join()
    assert len(made) == 1


def test_nothing_is_appended_to_what_a_link_leads_to(tmp_path):
    kept = tmp_path / 'kept'
    kept.write_text('mine')
    (tmp_path / 'log').symlink_to(kept)
    with pytest.raises(UserError, match='log is a link. Remove it'):
        storage.append(tmp_path / 'log', b'more')
    assert kept.read_text() == 'mine'
    storage.append(kept, b' and more')
    assert kept.read_text() == 'mine and more'


# The lock.


def test_a_lock_that_is_a_link_or_no_file_is_refused(tmp_path):
    kept = tmp_path / 'kept'
    kept.write_text('mine')
    lock = tmp_path / '.lock'
    lock.symlink_to(kept)
    for use in (storage.is_free, lambda file: storage.lock(file).__enter__()):
        with pytest.raises(UserError, match='lock is a link. Remove it'):
            use(lock)
    (tmp_path / '.cache.lock').symlink_to(kept)
    with pytest.raises(UserError, match='cache.lock is a link'):
        storage.cache_folder(tmp_path / 'cache', pytest.fail)
    assert kept.read_text() == 'mine'
    # A link that takes the file's place after the look is not followed, either.
    with pytest.raises(OSError, match='symbolic link'):
        open(lock, 'a+', opener=storage._open_no_link)
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(UserError, match='cannot write .*lock: '):
        with storage.lock(lock):
            pass


def test_one_process_at_a_time_has_a_lock(tmp_path):
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
        other.kill()  # the system takes its lock away
    with storage.lock(file, wait=True), contextlib.suppress(ValueError):
        raise ValueError
    with pytest.raises(UserError, match='cannot write .*inner'):
        with storage.lock(file / 'inner'):
            pass
