"""Data sources, one per module, selected by a spec string."""

from experiments import registries
from experiments.data.sources.base import Source
from experiments.errors import UserError
from flaxformer_lite.config.spec import Spec


def load(spec: Spec) -> Source:
    try:
        return registries.make('data', spec)
    # The path is too long, a folder isn't readable, or `~user` doesn't exist.
    except (OSError, RuntimeError) as error:
        reason = getattr(error, 'strerror', None) or error
        raise UserError(f'data={spec}: {reason}') from None
