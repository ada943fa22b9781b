"""Further checks of a config."""

from collections.abc import Iterable

import jax

from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError, user_errors
from experiments.optimizers import optax_specs
from experiments.optimizers.optimizer import ADAMS, BY_FIELDS
from flaxformer_lite import testing
from flaxformer_lite.config import variants
from flaxformer_lite.config.spec import Component

# Fields whose values can make other fields of the model ineffective.
_STRUCTURAL_FIELDS = (
    'architecture',
    'residual',
    'decoder.residual',
    'merged_attention',
)


def check_backend(config: ExperimentConfig) -> None:
    """Raises UserError if a component doesn't support the current backend of JAX.

    Describing and planning a run don't need this. Call `components.build` first.
    """
    problem = backend_problem(config)
    if problem:
        raise UserError(problem)


def backend_problem(config: ExperimentConfig) -> str:
    """Returns which component doesn't support the current backend of JAX, or ''."""
    used = set(variants.fields()) - variants.unused_fields(config.model)
    here = jax.default_backend()
    for layer in variants.of_layers(config.model):
        for field in sorted(used):
            part = layer.get(field)
            if part is None:
                continue
            backend = getattr(part.cls, 'backend', None)
            if backend not in (None, here):
                return (
                    f'model.{field}: {part} runs only on a {backend}, and JAX uses the '
                    f'{here} here. Use a machine with a {backend}, or choose another '
                    'such as blockwise.'
                )
    return ''


def check_contracts(config: ExperimentConfig) -> None:
    """Tests user-defined components against the quick contracts.

    `train.check_parts=False` disables this. Model components are tested together in a
    small model.
    """
    if not config.train.check_parts:
        return
    fields = {name: config.model.get(name) for name in variants.fields()}
    given = {name: part for name, part in fields.items() if part is not None}
    user_components = [
        f'model.{x}={given[x]}' for x in given if _is_user_component(given[x])
    ]
    if user_components:
        depth = len(variants.of_layers(config.model))
        with user_errors():
            model = testing.small_model(**given, num_layers=depth)
        findings = testing.model_findings(model, quick=True)
        _raise_if_broken(' and '.join(user_components), findings)
    settings = config.optimizer
    others = {
        'train.loss': (config.train.loss, testing.loss_findings),
        'optimizer.schedule': (settings.schedule, testing.schedule_findings),
        'optimizer.name': (settings.name, optax_specs.findings),
    }
    for field, (part, find) in others.items():
        if _is_user_component(part):
            _raise_if_broken(f'{field}={part}', find(part))


def _is_user_component(part: Component) -> bool:
    names = [entry.name.removeprefix(optax_specs.CONTRIB) for entry in part.entries]
    return any('.' in name for name in names)


def _raise_if_broken(named: str, findings: Iterable[testing.Finding]) -> None:
    for finding in testing.broken(findings):
        raise UserError(
            f"{named}: failed contract '{finding.contract}': {finding.detail}. Debug "
            'it with python -m experiments.check, or set train.check_parts=False to '
            'skip the check.'
        )


def check_overrides(config: ExperimentConfig, overrides: Iterable[str]) -> None:
    """Raises UserError if an overridden field has no effect."""
    unused = unused_fields(config)
    for field in sorted(unused.keys() & set(overrides)):
        value, reason = config.get(field), unused[field]
        raise UserError(f'{field}={value} has no effect where {reason}. Leave it out.')


def unused_fields(config: ExperimentConfig) -> dict[str, str]:
    """Returns the reason why a field has no effect, by field."""
    unused = {}
    with user_errors():
        names = variants.unused_fields(config.model)
    reasons = []
    for field in _STRUCTURAL_FIELDS:
        value = config.model.get(field)
        if value:
            reasons.append(f'model.{field}={value}')
    for name in names:
        unused[f'model.{name}'] = ' and '.join(reasons)
    name = config.optimizer.name.name
    if name not in BY_FIELDS:
        for field in ADAMS[:-1]:  # `components.make_optimizer` reports weight_decay
            reason = f'optimizer.name={name} takes arguments of its own'
            unused[f'optimizer.{field}'] = reason
    arguments = set()
    with user_errors('train.loss: '):
        for entry in config.train.loss.entries:
            arguments |= entry.parameters.keys()
    if 'teacher' not in arguments:
        unused['train.teacher'] = f'train.loss={config.train.loss}'
    if not config.init_from:
        unused |= dict.fromkeys(('init_average', 'init_ignore'), 'init_from is empty')
    return unused
