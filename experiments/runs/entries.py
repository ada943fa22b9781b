"""The types of a run's JSON files, for `storage.check_type`.

Entries without a default are required.
"""

# Subclasses require entries that their base leaves optional.
# pyright: reportGeneralTypeIssues=false

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from experiments import storage

Number = float | None  # null if it is not finite
Step = Annotated[int, msgspec.Meta(ge=0)]
_SIGNATURE = '_signature'


class _Scores(msgspec.Struct, frozen=True):
    step: Step = 0
    set: str = ''
    loss: Number = None
    perplexity: Number = None
    accuracy: Number = None
    direction: str = ''
    target: str = ''
    sentences: float = 0
    text_sha256: str = ''
    training_text_sha256: str = ''
    lower_is_better: list[str] = []
    time: Number = None
    tokens: Number = None
    seconds: Number = None
    tokens_per_second: Number = None
    learning_rate: Number = None
    gradient_norm: Number = None


class Row(_Scores, frozen=True, kw_only=True):
    """A row of `metrics.jsonl`."""

    step: Step
    kind: str


class SetScores(_Scores, frozen=True, kw_only=True):
    """The scores of a set next to its translations."""

    set: str


class FinalScores(_Scores, frozen=True, kw_only=True):
    """The scores of a set in `result.json`."""

    loss: Number
    perplexity: Number
    accuracy: Number
    direction: str
    sentences: float


class Result(msgspec.Struct, frozen=True):
    step: Step
    parameters: float
    train_seconds: float
    tokens_per_second: float
    evaluations: dict[str, Any]
    train_cpu_seconds: float = 0
    averaged_steps: list[Step] = []
    left_out_steps: list[Step] = []
    flops_per_token: Number = None
    peak_memory_bytes: Number = None
    training_text_sha256: str = ''


class Init(msgspec.Struct, frozen=True):
    run: str
    tokenizer: str
    anew: list[str] = []
    rows: dict[str, tuple[int, int]] = {}


class Failure(msgspec.Struct, frozen=True):
    status: str
    step: Step | None = None
    message: str = ''


class UserModule(msgspec.Struct, frozen=True):
    file: str
    sha256: str


class Environment(msgspec.Struct, frozen=True):
    devices: dict = {}
    packages: dict = {}
    git: dict | None = None
    modules: dict[str, UserModule] = {}
    earlier: list[dict] = []


def check_scores(
    file: object, scores: Mapping[str, Any], kind: Any, fix: str, within: str = ''
) -> None:
    """Checks a row, or the scores of a set, including any metric and loss."""
    storage.check_type(file, scores, kind, fix, within)
    for name, value in scores.items():
        field = f'{within}.{name}'
        if f'{name}{_SIGNATURE}' in scores or name.startswith('loss/'):
            storage.check_type(file, value, Number, fix, field)
        elif name.endswith(_SIGNATURE):
            storage.check_type(file, value, str, fix, field)
