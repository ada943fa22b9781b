"""A process that tokenises: pairs come in on its standard input, parts go out.

It knows nothing of JAX, and ends when its input does: it outlives nobody.
"""

import os
import pickle
import signal
import sys
from typing import BinaryIO

from experiments.data.tokenising import part
from experiments.data.tokenizer import Tokenizer


def main() -> None:
    # Whoever started it decides when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), 'wb')
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints
    try:
        _serve(sys.stdin.buffer, answers)
    except (EOFError, BrokenPipeError, pickle.UnpicklingError):
        os._exit(0)  # nobody asks any more, not even for what is still buffered


def _serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """A tokenizer comes first, then lists of pairs without end."""
    tokenizer: Tokenizer = pickle.load(questions)
    while True:
        pairs = pickle.load(questions)
        made = part.tokenize(pairs, tokenizer)
        pickle.dump(part.to_bytes(made), answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()


if __name__ == '__main__':
    main()
