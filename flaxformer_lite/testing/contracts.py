"""Tests all contracts of a component."""

from collections.abc import Sequence
from typing import Any

import jax

from flaxformer_lite import remat
from flaxformer_lite.config import spec, variants
from flaxformer_lite.config.spec import Component, Spec
from flaxformer_lite.decoding.processors.base import Processor
from flaxformer_lite.decoding.strategies.base import Strategy
from flaxformer_lite.losses.base import Loss
from flaxformer_lite.models.base import Model
from flaxformer_lite.testing import forms, models, parts, rows
from flaxformer_lite.testing.decoding import processor_findings, strategy_findings
from flaxformer_lite.testing.finding import Finding, broken, require
from flaxformer_lite.testing.losses import loss_findings

Tested = Spec | Model | Strategy | Processor | Loss


def check(
    part: Tested, kind: str | None = None, quick: bool = False
) -> Sequence[Finding]:
    """Returns `findings` if no contract is broken. Use it in the test of a component.

        fl.testing.check(MyAttention())

    A component of a model takes about a minute on a CPU. `quick` tests fewer contracts,
    in ten seconds.

    Raises:
      BrokenContract: Has the smallest counterexamples.
      ValueError: As `findings`.
    """
    named = isinstance(part, type | str | Component)
    name = Component.of(part).name if named else type(part).__name__
    return require(findings(part, kind, quick), name)


def findings(
    part: Tested, kind: str | None = None, quick: bool = False
) -> list[Finding]:
    """Tests each contract of a component in a small model.

    Exceptions that the component raises propagate.

    Args:
      part: A component of a model, as a class, an object or a spec; an object that is
        a strategy, a processor or a loss; or a model with the default special tokens
        and a vocabulary of at least `testing.rows.VOCAB_SIZE`.
      kind: Config field of the component, such as 'norm'. Defaults to the kind of the
        base class.
      quick: As in `model_findings`.

    Raises:
      ValueError: The component is unknown, or its kind is ambiguous.
    """
    if isinstance(part, Model):
        return model_findings(part, quick)
    if isinstance(part, Strategy):
        return strategy_findings(part)
    if isinstance(part, Processor):
        return processor_findings(part)
    if isinstance(part, Loss):
        return loss_findings(part)
    if kind is None:
        kind = spec.kind_of(part, variants.FOLDERS)
    cls = variants.folder(kind).find(part).cls
    backend = getattr(cls, 'backend', None)
    if backend not in (None, jax.default_backend()):
        return [Finding('runs', None, f'only on {backend}')]
    return model_findings(parts.model_with(part, kind), quick)


def model_findings(model: Model, quick: bool = False) -> list[Finding]:
    """Tests the contracts of a whole model.

    Args:
      model: A small model. Scanning is tested only if the model scans its layers.
      quick: Tests only that logits are finite and depend only on allowed tokens.

    Raises:
      ValueError: The vocabulary is too small for the tests' sentences.
    """
    if model.vocab_size < rows.VOCAB_SIZE:
        raise ValueError(
            f'vocab_size={model.vocab_size} is too small for the sentences of the '
            f'tests. Set it to at least {rows.VOCAB_SIZE}.'
        )
    separate = model.with_separate_layers()
    variables = models.random_variables(separate)
    found = models.examine(separate, variables, quick)
    results = models.findings(found, all_counts=not quick)
    if quick or broken(results):
        return results  # the other forms would fail too
    results.append(models.first_values(separate))
    rounded = forms.in_bfloat16(separate)
    results.append(_in_bfloat16(rounded, variables))
    results.append(forms.float32_sums(forms.products(rounded, variables)))
    if model.scans_layers:
        scanned = forms.examine_scanned(model, variables)
        results.append(
            models.same('scanned layers give the same results', scanned, found)
        )
    if model.stacks():
        rematerialized = models.examine(separate.with_remat(remat.BLOCKS), variables)
        results.append(
            models.same(
                'rematerialization gives the same results', rematerialized, found
            )
        )
    results.append(_on_devices(separate, variables))
    return results


def _in_bfloat16(rounded: Model, variables: Any) -> Finding:
    """Tests all contracts but that each token counts: rounding hides small effects."""
    contract = 'contracts hold in bfloat16'
    found = models.examine(rounded, variables)
    for finding in broken(models.findings(found, 'bfloat16', all_counts=False)):
        return Finding(contract, False, f'{finding.contract}: {finding.detail}')
    return Finding(contract, True)


def _on_devices(model: Model, variables: Any) -> Finding:
    devices = jax.device_count()
    if devices < 2:
        return Finding(forms.ON_DEVICES, None, 'needs two devices')
    sizes = {'fsdp': 2, 'tensor': 2} if devices >= 4 else {'fsdp': 2}
    return forms.same_on_devices(model, variables, sizes)
