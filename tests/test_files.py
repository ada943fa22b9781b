"""Files are written whole or not at all."""

import json
import math
import os
import subprocess
import sys

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


def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / 'file'
    storage.write(path, 'old')
    with pytest.raises(ZeroDivisionError):
        with storage.replacing(path) as temporary:
            temporary.write_text('new')
            raise ZeroDivisionError
    assert path.read_text() == 'old'
    assert [p.name for p in tmp_path.iterdir()] == ['file']


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


def test_a_new_file_is_as_open_to_others_as_the_user_s_mask_says(tmp_path):
    storage.write(tmp_path / 'ours', 'x')
    (tmp_path / 'plain').write_text('x')
    assert (tmp_path / 'ours').stat().st_mode == (tmp_path / 'plain').stat().st_mode


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


def test_text_that_is_not_utf8_is_not_written(tmp_path):
    with pytest.raises(
        UserError, match=r'cannot write .*a.json: .*udcff.* is not UTF-8'
    ):
        storage.write_json(tmp_path / 'a.json', {'a': 'x\udcff'})
    assert list(tmp_path.iterdir()) == []


def test_whether_there_is_a_file_may_not_be_known(tmp_path):
    assert storage.exists(tmp_path) and not storage.exists(tmp_path / 'a')
    (tmp_path / 'file').write_text('')
    assert not storage.exists(tmp_path / 'file' / 'a')
    with pytest.raises(UserError, match='File name too long'):
        storage.exists(tmp_path / ('x' * 5000))


def test_what_killed_processes_have_left_is_swept_away(tmp_path):
    with subprocess.Popen([sys.executable, '-c', '']) as ended:
        pass
    ended, alive, own = ended.pid, os.getppid(), os.getpid()
    host = storage.HOST
    for name in (f'a.{host}.{ended}', f'b.json.{host}.{alive}', f'c.{host}.{own}'):
        (tmp_path / f'.{name}.tmp').write_text('half')
    for name in ('.tmp', 'a.1.tmp', '.a.tmp', '.a.x.tmp', 'kept'):
        (tmp_path / name).write_text('of others')
    (tmp_path / f'.folder.{host}.{ended}.tmp').mkdir()
    storage.sweep(tmp_path, held=False)
    left = {path.name for path in tmp_path.iterdir()}
    others = {'.tmp', 'a.1.tmp', '.a.tmp', '.a.x.tmp', 'kept'}
    assert left == others | {f'.b.json.{host}.{alive}.tmp'}
    storage.sweep(tmp_path, held=True)
    assert {path.name for path in tmp_path.iterdir()} == others
    storage.sweep(tmp_path / 'missing', held=True)
