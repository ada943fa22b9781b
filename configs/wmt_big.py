"""The paper's big model (Table 3, last row), WMT14 English-German.

The paper: 300,000 steps, 3.5 days on 8 P100; newstest2013 BLEU 26.4, newstest2014 28.4
(compound-split tokenised).
"""

from ml_collections import ConfigDict

from configs import wmt_base


def get_config() -> ConfigDict:
    config = wmt_base.get_config()
    config.model.d_model = 1024
    config.model.num_heads = 16
    config.model.d_ff = 4096
    config.model.dropout = 0.3
    config.train.steps = 300_000
    config.evaluation.average = 20
    config.checkpoint.every = 600  # ten minutes at 1.0 s per step
    config.checkpoint.keep = 20
    return config
