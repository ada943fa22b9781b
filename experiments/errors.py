"""The one error whose message is for the user: printed as a line, without a traceback."""


class UserError(Exception):
    """Something the user can mend. The message names the field or file, the value and the mend."""
