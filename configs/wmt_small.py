"""A small Transformer that trains in minutes on two CPU cores, on text that ships with the project.

python -m experiments.run --config=configs/wmt_small.py
"""

from ml_collections import ConfigDict

from configs import wmt_base


def get_config() -> ConfigDict:
    config = wmt_base.get_config()
    config.data = 'grammar'
    config.tokenizer.vocab_size = 8_000
    config.batch.tokens = 2_048
    config.batch.max_length = 64

    config.model.d_model = 128
    config.model.num_layers = 4
    config.model.num_heads = 4
    config.model.d_ff = 512
    config.model.residual = 'pre_norm'

    config.optimizer.schedule = 'noam(warmup=400)'
    config.train.steps = 1_000
    config.train.log_every = 20
    config.evaluation.every = 250
    config.checkpoint.every = 250
    return config
