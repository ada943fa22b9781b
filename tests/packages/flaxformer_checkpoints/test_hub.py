"""Tests of checkpoints by name, against a small server that answers as the Hub does."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import published_tokenizers
import pytest

from experiments import run
from experiments.config.schema import ExperimentConfig
from experiments.data import tokenizers
from experiments.errors import UserError
from experiments.runs import reading
from experiments.training import warm_start
from flaxformer_checkpoints import convert, converted, hub
from flaxformer_checkpoints.tokenizer import HuggingfaceTokenizer

COMMIT = '0123456789abcdef0123456789abcdef01234567'
NAME = 'google-t5/tiny'
UNTRAINED = tokenizers.make('characters')


class Hub:
    """Repositories by name, and what was asked of the server and uploaded to it."""

    def __init__(self):
        self.repositories = {}
        self.asked = []
        self.uploaded = {}
        self.created = []

    def add(self, name, folder, **more):
        files = {x.name: x.read_bytes() for x in folder.iterdir()}
        self.repositories[name] = files | more


class Handler(BaseHTTPRequestHandler):
    store: Hub

    def log_message(self, *_):
        pass

    def answer(self, code, body=b'', **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace('_', '-'), value)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.partition('?')[0]
        self.store.asked.append(path)
        if path.startswith('/mark/'):
            self.answer(200)
            return
        api = re.fullmatch(r'/api/models/([^/]+/[^/]+)/(revision|tree)/(\w+)', path)
        if api:
            name, kind, revision = api.groups()
            if self.has(name, revision):
                files = self.store.repositories[name]
                found = tree(files) if kind == 'tree' else about(name, files)
                self.answer(200, found)
            return
        file = re.fullmatch(r'/([^/]+/[^/]+)/resolve/(\w+)/(.+)', path)
        if not file:
            self.answer(404)
        elif self.has(file[1], file[2]):
            content = self.store.repositories[file[1]][file[3]]
            etag = f'"{sha(content)}"'
            self.answer(200, content, X_Repo_Commit=COMMIT, ETag=etag)

    def has(self, name, revision):
        """Returns whether there is such a repository; otherwise answers why not."""
        if name == 'meta/gated':
            self.answer(403, {}, X_Error_Code='GatedRepo')
        elif name not in self.store.repositories:
            self.answer(404, {}, X_Error_Code='RepoNotFound')
        elif revision not in ('main', COMMIT):
            self.answer(404, {}, X_Error_Code='RevisionNotFound')
        else:
            return True
        return False

    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length'] or 0))
        if self.path == '/api/repos/create':
            asked = json.loads(body)
            self.store.created.append(asked)
            self.answer(200, {'url': f'{self.store.address}/me/{asked["name"]}'})
        elif self.path == '/api/validate-yaml':
            self.answer(200, {'errors': [], 'warnings': []})
        elif '/preupload/' in self.path:
            files = json.loads(body)['files']
            mode = {'uploadMode': 'regular', 'shouldIgnore': False}
            modes = [{'path': x['path'], **mode} for x in files]
            self.answer(200, {'files': modes})
        else:
            for entry in map(json.loads, body.decode().splitlines()):
                if entry['key'] == 'file':
                    content = base64.b64decode(entry['value']['content'])
                    self.store.uploaded[entry['value']['path']] = content
            url = f'{self.store.address}/me/tuned/commit/{COMMIT}'
            self.answer(200, {'commitUrl': url, 'commitOid': COMMIT})


def about(name, files):
    names = [{'rfilename': x} for x in files]
    return {'id': name, 'modelId': name, 'sha': COMMIT, 'siblings': names}


def tree(files):
    return [
        {'type': 'file', 'path': x, 'size': len(y), 'oid': sha(y)}
        for x, y in files.items()
    ]


def sha(content):
    return hashlib.sha1(content).hexdigest()


@pytest.fixture(scope='module')
def server():
    store = Hub()
    answering = type('Answering', (Handler,), {'store': store})
    server = ThreadingHTTPServer(('127.0.0.1', 0), answering)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    store.address = f'http://127.0.0.1:{server.server_port}'
    yield store
    server.shutdown()
    thread.join()
    server.server_close()


# huggingface_hub reads its settings when it is imported, which each fork does.
PROGRAM = """
import json, os, sys, traceback, urllib.request
from pathlib import Path
from flaxformer_checkpoints import hub
from experiments.errors import UserError

def answer(names):
    found = []
    for name in names:
        try:
            if name.startswith('push '):
                hub.reading.read_run = lambda path: None
                hub.model_card = lambda name, run: '# card'
                _, folder, name = name.split()
                hub.check_push(name)
                found.append(hub.push(Path(folder), name, Path()))
            else:
                found.append(str(hub.checkpoint(name)))
        except UserError as error:
            found.append(f'refused {error}')
    return found

for group, settings, names in json.loads(sys.argv[1]):
    urllib.request.urlopen(f'{sys.argv[2]}/mark/{group}')
    if not os.fork():
        os.environ.update(settings)
        try:
            lines = answer(names)
        except BaseException:
            lines = traceback.format_exc().splitlines()
        print(json.dumps([group, lines]), flush=True)
        os._exit(0)
    os.wait()
"""
REFUSED = {
    'no/such': 'no/such: ',
    'meta/gated': 'terms',
    f'{NAME}@other': 'revision',
    'old/pickled': 'safetensors',
    'their/code': 'auto_map',
    'a/b/c': 'a/b/c ',
}


@pytest.fixture(scope='module')
def answers(server, repositories, tmp_path_factory):
    """Returns what was answered to each group of names, and asked of the server."""
    folder = tmp_path_factory.mktemp('exported')
    (folder / 'config.json').write_text('{}')
    (folder / 'model.safetensors').write_bytes(b'weights')
    groups = [
        ('first', {}, [NAME]),
        ('again', {}, [f'{NAME}@{COMMIT}']),
        ('offline', {'HF_HUB_OFFLINE': '1'}, [NAME, 'no/such']),
        ('unreachable', {'HF_ENDPOINT': 'http://127.0.0.1:9'}, [NAME, 'no/such']),
        ('refused', {}, list(REFUSED)),
        ('pushed', {'HF_TOKEN': 'hf_x'}, [f'push {folder} me/tuned']),
        ('logged out', {}, [f'push {folder} me/other']),
    ]
    groups = [(name.replace(' ', '_'), *others) for name, *others in groups]
    environment = {
        **os.environ,
        'HF_ENDPOINT': server.address,
        'HF_HOME': str(tmp_path_factory.mktemp('hub')),
        'HF_HUB_DISABLE_XET': '1',
        'HF_HUB_DISABLE_IMPLICIT_TOKEN': '1',
    }
    command = [sys.executable, '-c', PROGRAM, json.dumps(groups), server.address]
    found = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert not found.returncode, found.stderr
    return dict(map(json.loads, found.stdout.splitlines()))


def asked_in(server, group):
    marks = [i for i, x in enumerate(server.asked) if x.startswith('/mark/')]
    begin = server.asked.index(f'/mark/{group}')
    end = min([i for i in marks if i > begin], default=None)
    return server.asked[begin + 1 : end]


@pytest.fixture(scope='module')
def repositories(server, tmp_path_factory):
    folder = published_tokenizers.checkpoint(
        't5', tmp_path_factory.mktemp('published') / 't5'
    )
    server.add(NAME, folder, **{'code.py': b'raise', 'pytorch_model.bin': b'pickle'})
    server.add('old/pickled', folder, **{'pytorch_model.bin': b'pickle'})
    del server.repositories['old/pickled']['model.safetensors']
    config = json.loads((folder / 'config.json').read_text('utf-8'))
    config['auto_map'] = {'AutoModel': 'code.Model'}
    server.add('their/code', folder, **{'config.json': json.dumps(config).encode()})
    return folder


def test_a_name_is_downloaded_once_and_without_code_or_pickles(
    answers, server, repositories
):
    (path,) = answers['first']
    assert path.endswith(COMMIT)
    names = {x.name for x in Path(path).iterdir()}
    assert {'config.json', 'model.safetensors', 'spiece.model'} <= names
    assert names.isdisjoint(['code.py', 'pytorch_model.bin'])
    for name in names:
        expected = (repositories / name).read_bytes()
        assert (Path(path) / name).read_bytes() == expected
    assert [x for x in asked_in(server, 'first') if '/resolve/' in x]
    assert answers['again'] == [path]
    assert not [x for x in asked_in(server, 'again') if '/resolve/' in x]


@pytest.mark.parametrize('group', ['offline', 'unreachable'])
def test_cached_checkpoints_need_no_network(group, answers, server):
    cached, missing = answers[group]
    assert cached == answers['first'][0]
    assert missing.startswith('refused no/such: ') and 'cache' in missing
    assert asked_in(server, group) == []


def test_unavailable_checkpoints_are_errors_of_one_line(answers):
    for line, words in zip(answers['refused'], REFUSED.values(), strict=True):
        assert line.startswith('refused ') and words in line and '\n' not in line


def test_a_local_folder_of_the_name_needs_no_network(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, '_package', None)
    local = tmp_path / 'google-t5' / 'tiny'
    local.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert hub.checkpoint(NAME).samefile(local)
    # A typo in a path is not a name.
    for path in (NAME, 'google-t5/other', str(tmp_path / 'other')):
        assert hub.as_run(path, UNTRAINED) is None


def test_init_from_may_be_a_name(repositories, tmp_path, monkeypatch):
    monkeypatch.setenv('FLAXFORMER_LITE_CACHE', str(tmp_path / 'cache'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, 'checkpoint', lambda name: repositories)
    path = hub.as_run(NAME, UNTRAINED)
    assert path
    config = json.loads((path / 'config.json').read_text('utf-8'))
    assert config['tokenizer'].startswith('huggingface(')
    monkeypatch.setattr(converted, 'write_run', None)
    assert hub.as_run(NAME, UNTRAINED) == path  # converted once


def test_languages_of_a_name_create_nothing_outside_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv('FLAXFORMER_LITE_CACHE', str(tmp_path / 'cache'))
    monkeypatch.setattr(hub, 'checkpoint', lambda name: tmp_path / 'found')
    for languages in (('../../x', ''), ('a', '/../../x')):
        with pytest.raises(UserError, match='slashes'):
            hub.as_run(NAME, HuggingfaceTokenizer('p', *languages))
    assert list(tmp_path.iterdir()) == []


def test_a_name_gets_the_languages_of_the_tokenizer(tmp_path, monkeypatch):
    folder = published_tokenizers.checkpoint('nllb', tmp_path / 'nllb')
    source, target = published_tokenizers.golden_of('nllb')['languages']
    monkeypatch.setenv('FLAXFORMER_LITE_CACHE', str(tmp_path / 'cache'))
    monkeypatch.setattr(hub, 'checkpoint', lambda name: folder)

    def found(**arguments):
        tokenizer = HuggingfaceTokenizer(vocab_size=9, **arguments)
        config = ExperimentConfig(init_from='meta/nllb')
        origin = warm_start.find_origin(config, tmp_path / 'run', tokenizer)
        assert origin
        return origin.run

    new = found(source=source, target='new', languages={'new': target})
    assert new.tokenizer.default_languages == [source, target]
    # The same name with other languages is another run.
    other = found(source=target, target=source)
    assert other.checkpoints.directory != new.checkpoints.directory
    with pytest.raises(UserError, match='^init_from: meta/nllb.* source='):
        found()

    # A dry run takes the same languages, and compares the models.
    monkeypatch.chdir(tmp_path)
    tokenizer = f'huggingface(vocab_size=9, source="{source}", target="{target}")'
    flags = ['--config=wmt_tiny', '--config.init_from=meta/nllb', '--dry_run']
    flags.append(f'--config.tokenizer={tokenizer}')
    monkeypatch.setattr(sys, 'argv', ['run', *flags])
    with pytest.raises(UserError, match='^init_from: meta/nllb'):
        run.main()


RUN = {
    'init_from': NAME,
    'data': 'grammar(pairs=100)',
}
SCORES = {
    'val': {
        **{
            'direction': 'eng_Latn-deu_Latn',
            'bleu': 12.345,
            'bleu_signature': 'nrefs:1',
        },
        **{'loss': 1.5, 'lower_is_better': []},
    }
}


@pytest.fixture
def trained(tmp_path, monkeypatch):
    path = tmp_path / 'run'
    path.mkdir()
    (path / 'config.json').write_text(json.dumps(RUN), encoding='utf-8')
    result = {'evaluations': SCORES, 'step': 1200}
    found = reading.Run(path, RUN, 'finished', '', result, [], {})
    monkeypatch.setattr(reading, 'read_run', lambda _: found)
    return found


def test_the_card_states_languages_data_scores_and_command(trained):
    card = hub.model_card('me/tuned', trained)
    _, header, text = card.split('---\n', 2)
    yaml = pytest.importorskip('yaml')
    fields = yaml.safe_load(header)
    assert fields['language'] == ['deu', 'eng'] and fields['license'] == 'unknown'
    assert '| val | eng_Latn-deu_Latn | bleu (nrefs:1) | 12.35 |' in text
    for words in ('grammar(pairs=100)', NAME, '--from=me/tuned', '1,200'):
        assert words in text


def test_a_push_uploads_the_folder_to_a_private_repository(answers, server):
    assert answers['pushed'] == [f'{server.address}/me/tuned']
    assert server.uploaded == {
        'README.md': b'# card',
        'config.json': b'{}',
        'model.safetensors': b'weights',
    }
    (created,) = server.created
    assert created['name'] == 'tuned' and created['organization'] == 'me'
    assert created.get('private') or created['visibility'] == 'private'
    (line,) = answers['logged_out']
    assert 'push=me/other' in line and 'hf auth login' in line


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        (['run', '--to=huggingface', '--out=o', '--push=me'], 'OWNER/NAME'),
        (['run', '--to=ctranslate2', '--out=o', '--push=me/x'], '--to=huggingface'),
        (['run', '--to=huggingface', '--out=o', '--push=me/x'], 'hf auth login'),
    ],
)
def test_a_push_that_is_impossible_is_refused_first(arguments, words, monkeypatch):
    monkeypatch.setattr(huggingface_hub, 'get_token', lambda: None)
    monkeypatch.setattr(sys, 'argv', ['convert', *arguments])
    with pytest.raises(UserError, match=re.escape(words)):
        convert.main()


def test_one_checkpoint_is_converted(monkeypatch):
    for arguments in ([], ['folder', f'--from={NAME}']):
        monkeypatch.setattr(sys, 'argv', ['convert', *arguments, '--workdir=r'])
        with pytest.raises(UserError, match='pass'):
            convert.main()
