"""Where the text comes from: one file a data source, chosen by a spec string."""

from experiments.data.sources.base import Source
from experiments.errors import UserError
from experiments.kinds import SOURCES
from flaxformer_lite import ranges
from flaxformer_lite.config.spec import Spec


def load(spec: Spec) -> Source:
    """The data source that the config field `data` names.

    Raises:
      UserError: the spec, its name or one of its arguments is wrong.
    """
    try:
        return SOURCES.make(spec)
    except ValueError as error:
        raise UserError(f'data: {error}') from None
    # A path too long, a folder without permission, the home of a user that is not
    # there.
    except (OSError, RuntimeError) as error:
        reason = getattr(error, 'strerror', None) or error
        raise UserError(f'data={ranges.shown(spec)}: {reason}') from None
