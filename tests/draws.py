"""The seed of tests that draw their cases.

It is fixed, so that a new failure comes from the change that is tested. The nightly run
draws other cases.
"""

import os

SEED = int(os.environ.get('TEST_SEED', 0))
