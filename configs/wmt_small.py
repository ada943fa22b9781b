"""A small Transformer that trains in minutes on two CPU cores, on embedded text.

On 2 cores of an AMD EPYC: 3:47 minutes, BLEU 93.7 on `test`.
"""

from ml_collections import ConfigDict

from configs import wmt_base


def get_config() -> ConfigDict:
    config = wmt_base.get_config()
    config.data = 'grammar'
    config.tokenizer = 'sentencepiece(vocab_size=4000)'
    config.batch.tokens = 1_024
    config.batch.max_length = 64

    config.model.d_model = 128
    config.model.num_layers = 4
    config.model.num_heads = 4
    config.model.d_ff = 512
    config.model.residual = 'pre_norm'

    config.optimizer.schedule = 'cosine(peak=4e-3, warmup=0.15)'
    config.train.steps = 1_300
    config.train.log_every = 50
    config.evaluation.every = 325
    config.evaluation.average = 1
    config.evaluation.batch_tokens = 4_096
    config.checkpoint.every = 100
    config.checkpoint.keep = 2
    return config
