"""Tasks that a rule makes, and lengths beyond those of training.

python -m experiments.run --config=configs/made.py --config.data='made(task="sort")'
"""

from ml_collections import ConfigDict

from configs import scan


def get_config() -> ConfigDict:
    config = scan.get_config()
    config.data = 'made(task="reverse", longest=20)'
    return config
