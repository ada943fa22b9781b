"""Tests of checkpoints by name, against a small server that answers as the Hub does."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import create_autospec

import huggingface_hub
import published_tokenizers
import pytest

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


class Handler(BaseHTTPRequestHandler):
    """Answers for `repositories`, files by name, and records the paths of requests."""

    repositories: dict
    requests: list

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
        self.requests.append(path)
        api = re.fullmatch(r'/api/models/([^/]+/[^/]+)/(revision|tree)/(\w+)', path)
        file = re.fullmatch(r'/([^/]+/[^/]+)/resolve/(\w+)/(.+)', path)
        if path.startswith('/mark/'):
            self.answer(200)
        elif api and self.has(api[1], api[3]):
            files = self.repositories[api[1]]
            about = {'id': api[1], 'modelId': api[1], 'sha': COMMIT}
            about['siblings'] = [{'rfilename': x} for x in files]
            tree = [
                {'type': 'file', 'path': x, 'size': len(y), 'oid': sha(y)}
                for x, y in files.items()
            ]
            self.answer(200, tree if api[2] == 'tree' else about)
        elif file and self.has(file[1], file[2]):
            content = self.repositories[file[1]][file[3]]
            etag = f'"{sha(content)}"'
            self.answer(200, content, X_Repo_Commit=COMMIT, ETag=etag)

    def has(self, name, revision):
        """Returns whether the repository exists; otherwise sends the error."""
        if name == 'meta/gated':
            self.answer(403, {}, X_Error_Code='GatedRepo')
        elif name not in self.repositories:
            self.answer(404, {}, X_Error_Code='RepoNotFound')
        elif revision not in ('main', COMMIT):
            self.answer(404, {}, X_Error_Code='RevisionNotFound')
        else:
            return True
        return False


def sha(content):
    return hashlib.sha1(content).hexdigest()


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp('published') / 't5'
    return published_tokenizers.checkpoint('t5', folder)


@pytest.fixture(scope='module')
def server(checkpoint):
    files = {x.name: x.read_bytes() for x in checkpoint.iterdir()}
    config = json.loads(files['config.json']) | {
        'auto_map': {'AutoModel': 'code.Model'}
    }
    pickled = files | {'pytorch_model.bin': b'pickle'}
    del pickled['model.safetensors']
    Handler.repositories = {
        NAME: files | {'code.py': b'raise', 'pytorch_model.bin': b'pickle'},
        'old/pickled': pickled,
        'their/code': files | {'config.json': json.dumps(config).encode()},
    }
    Handler.requests = []
    with ThreadingHTTPServer(('127.0.0.1', 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f'http://127.0.0.1:{server.server_port}'
        server.shutdown()
        thread.join()


# huggingface_hub reads its settings when it is imported, which each fork does.
PROGRAM = """
import json, os, sys, traceback, urllib.request
from flaxformer_checkpoints import hub
from experiments.errors import UserError

def answer(name):
    try:
        return str(hub.checkpoint(name))
    except UserError as error:
        return f'error {error}'

for group, settings, names in json.loads(sys.argv[1]):
    urllib.request.urlopen(f'{sys.argv[2]}/mark/{group}')
    if not os.fork():
        os.environ.update(settings)
        try:
            lines = [answer(name) for name in names]
        except BaseException:
            lines = traceback.format_exc().splitlines()
        print(json.dumps([group, lines]), flush=True)
        os._exit(0)
    os.wait()
"""
UNAVAILABLE = {
    'no/such': 'no/such: ',
    'meta/gated': 'terms',
    f'{NAME}@other': 'revision',
    'old/pickled': 'safetensors',
    'their/code': 'auto_map',
    'a/b/c': 'a/b/c ',
}


@pytest.fixture(scope='module')
def answers(server, tmp_path_factory):
    """Returns the results of several processes, by their names."""
    groups = [
        ('first', {}, [NAME]),
        ('again', {}, [f'{NAME}@{COMMIT}']),
        ('offline', {'HF_HUB_OFFLINE': '1'}, [NAME, 'no/such']),
        ('unreachable', {'HF_ENDPOINT': 'http://127.0.0.1:9'}, [NAME, 'no/such']),
        ('unavailable', {}, list(UNAVAILABLE)),
    ]
    environment = {
        **os.environ,
        'HF_ENDPOINT': server,
        'HF_HOME': str(tmp_path_factory.mktemp('hub')),
        'HF_HUB_DISABLE_XET': '1',
        'HF_HUB_DISABLE_IMPLICIT_TOKEN': '1',
    }
    argv = [sys.executable, '-c', PROGRAM, json.dumps(groups), server]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment)
    assert not done.returncode, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


def requests_of(group):
    begin = Handler.requests.index(f'/mark/{group}') + 1
    rest = Handler.requests[begin:]
    ends = [i for i, path in enumerate(rest) if path.startswith('/mark/')]
    return rest[: min(ends, default=None)]


@pytest.mark.ci
def test_checkpoint_is_downloaded_once_without_code_or_pickles(answers, checkpoint):
    (path,) = answers['first']
    assert path.endswith(COMMIT)
    files = {x.name: x.read_bytes() for x in Path(path).iterdir()}
    assert {'config.json', 'model.safetensors', 'spiece.model'} <= files.keys()
    assert files.keys().isdisjoint(['code.py', 'pytorch_model.bin'])
    assert files == {name: (checkpoint / name).read_bytes() for name in files}
    assert any('/resolve/' in x for x in requests_of('first'))
    assert answers['again'] == [path]
    assert not any('/resolve/' in x for x in requests_of('again'))
    for group in 'offline', 'unreachable':
        cached, missing = answers[group]
        assert cached == path
        assert missing.startswith('error no/such: ') and 'cache' in missing
        assert requests_of(group) == []


def test_unavailable_checkpoints_are_errors_of_one_line(answers):
    lines = zip(answers['unavailable'], UNAVAILABLE.values(), strict=True)
    for line, problem in lines:
        assert line.startswith('error ') and problem in line and '\n' not in line


def test_local_folders_take_precedence(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, '_package', None)
    local = tmp_path / 'google-t5' / 'tiny'
    local.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert hub.checkpoint(NAME).samefile(local)
    # A typo in a path is not a name.
    for path in (NAME, 'google-t5/other', str(tmp_path / 'other')):
        assert hub.as_run(path, UNTRAINED) is None


def test_init_from_converts_a_name_once(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv('FLAXFORMER_LITE_CACHE', str(tmp_path / 'cache'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, 'checkpoint', lambda name: checkpoint)
    path = hub.as_run(NAME, UNTRAINED)
    config = json.loads((path / 'config.json').read_text('utf-8'))
    assert config['tokenizer'].startswith('huggingface(')
    monkeypatch.setattr(converted, 'write_run', None)
    assert hub.as_run(NAME, UNTRAINED) == path


def test_languages_create_nothing_outside_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv('FLAXFORMER_LITE_CACHE', str(tmp_path / 'cache'))
    monkeypatch.setattr(hub, 'checkpoint', lambda name: tmp_path / 'found')
    for languages in (('../../x', ''), ('a', '/../../x')):
        with pytest.raises(UserError, match='slashes'):
            hub.as_run(NAME, HuggingfaceTokenizer('p', *languages))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ci
def test_init_from_converts_a_name_for_the_languages_of_the_tokenizer(
    tmp_path, monkeypatch
):
    folder = published_tokenizers.checkpoint('nllb', tmp_path / 'nllb')
    source, target = published_tokenizers.golden_of('nllb')['languages']
    monkeypatch.setenv('FLAXFORMER_LITE_CACHE', str(tmp_path / 'cache'))
    monkeypatch.setattr(hub, 'checkpoint', lambda name: folder)

    def origin_run(**arguments):
        tokenizer = HuggingfaceTokenizer(vocab_size=9, **arguments)
        config = ExperimentConfig(init_from='meta/nllb')
        return warm_start.find_origin(config, tmp_path / 'run', tokenizer).run

    new = origin_run(source=source, target='new', languages={'new': target})
    assert new.tokenizer.default_languages == [source, target]
    # The same name with other languages is another run.
    other = origin_run(source=target, target=source)
    assert other.checkpoints.directory != new.checkpoints.directory
    with pytest.raises(UserError, match='^init_from: meta/nllb.* source='):
        origin_run()


def test_model_card_states_languages_data_scores_and_command(tmp_path):
    config = {'init_from': NAME, 'data': 'grammar(pairs=100)'}
    (tmp_path / 'config.json').write_text(json.dumps(config), encoding='utf-8')
    scores = {'direction': 'eng_Latn-deu_Latn', 'bleu': 12.345, 'loss': 1.5}
    scores |= {'bleu_signature': 'nrefs:1', 'lower_is_better': []}
    result = {'evaluations': {'val': scores}, 'step': 1200}
    trained = reading.Run(tmp_path, config, 'finished', '', result, [], {})
    card = hub.model_card('me/tuned', trained)
    _, header, text = card.split('---\n', 2)
    yaml = pytest.importorskip('yaml')
    fields = yaml.safe_load(header)
    assert fields['language'] == ['deu', 'eng'] and fields['license'] == 'unknown'
    assert '| val | eng_Latn-deu_Latn | bleu (nrefs:1) | 12.35 |' in text
    for fact in ('grammar(pairs=100)', NAME, '--from=me/tuned', '1,200'):
        assert fact in text


def test_push_uploads_the_folder_to_a_private_repository(tmp_path, monkeypatch):
    address = 'https://hub/me/tuned'
    create = create_autospec(huggingface_hub.create_repo, return_value=address)
    upload = create_autospec(huggingface_hub.upload_folder)
    monkeypatch.setattr(huggingface_hub, 'create_repo', create)
    monkeypatch.setattr(huggingface_hub, 'upload_folder', upload)
    monkeypatch.setattr(hub.reading, 'read_run', lambda path: None)
    monkeypatch.setattr(hub, 'model_card', lambda name, run: '# card')
    assert hub.push(tmp_path, 'me/tuned', tmp_path) == address
    create.assert_called_once_with('me/tuned', private=True, exist_ok=True)
    assert upload.call_args.kwargs['folder_path'] == tmp_path
    assert (tmp_path / 'README.md').read_text('utf-8') == '# card'


@pytest.mark.parametrize(
    ('arguments', 'problem'),
    [
        (['run', '--to=huggingface', '--out=o', '--push=me'], 'OWNER/NAME'),
        (['run', '--to=ctranslate2', '--out=o', '--push=me/x'], '--to=huggingface'),
        (['run', '--to=huggingface', '--out=o', '--push=me/x'], 'hf auth login'),
        (['--workdir=r'], 'pass a directory'),
        (['folder', f'--from={NAME}', '--workdir=r'], 'pass a directory'),
    ],
)
def test_impossible_pushes_and_downloads_are_rejected(arguments, problem, monkeypatch):
    monkeypatch.setattr(huggingface_hub, 'get_token', lambda: None)
    monkeypatch.setattr(sys, 'argv', ['convert', *arguments])
    with pytest.raises(UserError, match=re.escape(problem)):
        convert.main()
