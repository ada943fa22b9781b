"""Extracts the Python code and the commands of README and docs/."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (
        *(ROOT / name for name in ('README.md', 'CONTRIBUTING.md')),
        *(ROOT / folder / 'README.md' for folder in ('benchmarks', 'results')),
        *ROOT.glob('docs/**/*.md'),
    )
)
FENCE = re.compile(r'^```(\w*)\n(.*?)^```$', re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r'python -m (?:experiments|benchmarks|flaxformer_\w+)\.\w')
# Placeholder in a command → a valid value.
PLACEHOLDERS = {
    ' --config.<field>=…': '',
    '--config=…': '--config=configs/wmt_small.py',
    '--workdir=…': '--workdir=runs/wmt_small',
    'runs/…': 'runs/wmt_small',
    " --text='…'": " --text='Tom sleeps.'",
    '$DATA': 'grammar',
}
# Replaces Python: prints its arguments, one per line, and then a line `;`.
ECHO = 'pip() { :; }; python() { printf "%s\\n" "$@" ";" >&3; }; '


def text(page):
    return re.sub(r'<!--.*?-->', '', (ROOT / page).read_text('utf-8'), flags=re.DOTALL)


def snippets(page):
    return [
        code for language, code in FENCE.findall(text(page)) if language == 'python'
    ]


def files(page):
    """Returns file → code for files that the page asks to create: "…, `my_sweep.py`,
    …".
    """
    found = {}
    for block in FENCE.finditer(text(page)):
        lead = text(page)[: block.start()].rstrip().rpartition('\n\n')[2]
        for name in re.findall(r'`([a-z_]+\.py)`', lead):
            if block[1] == 'python':
                found[name] = block[2]
    return found


def commands(page):
    """Returns the distinct commands of a page, from blocks and inline code."""
    blocks = FENCE.findall(text(page))
    joined = [code.replace('\\\n', ' ') for name, code in blocks if name == '']
    lines = [line.strip() for code in joined for line in code.splitlines()]
    within = re.findall(r'`([^`\n]+)`', FENCE.sub('', text(page)))
    lines += [line.replace('\\|', '|') for line in within]  # tables escape it
    found = [line for line in lines if COMMAND.search(line)]
    for name, value in PLACEHOLDERS.items():
        found = [line.replace(name, value) for line in found]
    return list(dict.fromkeys(found))


def arguments(command, folder):
    """Returns a command's arguments as a shell splits them, one list per Python
    process.
    """
    read, write = os.pipe()
    # The shell writes to this process's pipe as descriptor 3.
    script = f'exec 3>&{write}; {ECHO}{command.removeprefix("$ ")}'
    subprocess.run(['bash', '-euc', script], cwd=folder, pass_fds=[write], check=True)
    os.close(write)
    with os.fdopen(read, encoding='utf-8') as pipe:
        calls = pipe.read().split('\n;\n')[:-1]
    return [call.split('\n') for call in calls]
