"""Inflection: from a lemma and features to an inflected form (Cotterell et al. 2017).

Needs the data: `git clone https://github.com/sigmorphon/conll2017`.
"""

from ml_collections import ConfigDict

from configs import g2p


def get_config() -> ConfigDict:
    config = g2p.get_config()
    config.data = 'sigmorphon(path="conll2017", language="german")'
    config.evaluation.metrics = '[exact_match, edit_distance]'
    return config
