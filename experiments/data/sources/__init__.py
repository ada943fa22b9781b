"""Data sources, one per module, selected by a spec string."""

from experiments.data.sources.base import Source
from experiments.errors import UserError
from experiments.registries import SOURCES
from flaxformer_lite import validation
from flaxformer_lite.config.spec import Spec


def load(spec: Spec) -> Source:
    try:
        return SOURCES.make(spec)
    except ValueError as error:
        raise UserError(f'data: {error}') from None
    # A path is too long, a folder has no permission, or `~user` does not exist.
    except (OSError, RuntimeError) as error:
        reason = getattr(error, 'strerror', None) or error
        raise UserError(f'data={validation.quote(spec)}: {reason}') from None
