"""Warnings about spec strings in Python, where users pass objects."""

import warnings
from typing import Any

from flaxformer_lite.config.spec import Component, Folder
from flaxformer_lite.lazy_exports import public_name


def warn_of_text(argument: str, spec: Any, folder: Folder) -> None:
    """Warns the caller's caller if a spec is a string, and shows the objects instead.

    Strings are for configs. In Python, they will be errors in the next release.
    """
    if isinstance(spec, str):
        objects = as_code(Component.of(spec, folder))
        warnings.warn(
            f'{argument}={spec!r}: strings are deprecated in Python. Pass {objects}.',
            DeprecationWarning,
            stacklevel=3,
        )


def as_code(component: Component) -> str:
    """Returns the Python expression of a component, with `fl` for flaxformer_lite.

    Examples:
      >>> from flaxformer_lite.config.variants import LOSSES
      >>> as_code(Component.of('[focal(gamma=1.0), z_loss]', LOSSES))
      '[fl.losses.Focal(gamma=1.0), fl.losses.ZLoss()]'
    """
    if component.is_list:
        return f'[{", ".join(map(as_code, component.entries))}]'
    given = ', '.join(f'{name}={x!r}' for name, x in component.arguments.items())
    return f'{public_name(component.cls)}({given})'
