"""The one error whose message is for the user: printed as a line, without a traceback."""

import sys


class UserError(Exception):
    """Something the user can mend. The message names the field or file, the value and the mend."""


def warn(message: str) -> None:
    """Says in one line on stderr what was found wrong and is mended without the user."""
    print('warning:', message, file=sys.stderr, flush=True)
