"""Objectives on one side of the pairs, one per module."""

from typing import TYPE_CHECKING

from experiments.errors import user_errors
from experiments.registries import OBJECTIVES
from flaxformer_lite.config.spec import Spec

if TYPE_CHECKING:  # checking a spec should not import numpy
    from experiments.data.objectives.base import Objective


def make(spec: Spec | None) -> 'Objective | None':
    if not spec:
        return None
    with user_errors('objective: '):
        return OBJECTIVES.make(spec, pieces=())
