"""Four arms of `modern_wide` on Multi30k, each at its best rate there.

Needs the folder `multi30k/` of results/README.md, with `test_2016_flickr`.
"""

from configs.sweeps import modern, modern_wide

PARTS = {
}


def get_config() -> dict:
    wide = modern_wide.get_config()
