"""The paper's base model (Table 3, first row), WMT14 English-German.

The paper: 100,000 steps, 12 hours on 8 P100; newstest2013 BLEU 25.8, newstest2014 27.3
(compound-split tokenised). docs/reference/configs.md lists all fields.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.data = 'tfds(name="wmt14_translate/de-en", source="en", target="de")'
    config.tokenizer = 'sentencepiece(vocab_size=37000)'  # §5.1

    config.batch = ConfigDict()
    config.batch.tokens = 25_000  # target positions, over all devices

    config.model = model = ConfigDict()
    model.d_model = 512
    model.num_layers = 6
    model.num_heads = 8  # d_k and d_v are d_model / num_heads
    model.d_ff = 2048
    model.dropout = 0.1
    model.attention = 'softmax'  # §3.2
    model.positions = 'sinusoidal'  # §3.5
    model.norm = 'layer'
    model.residual = 'post_norm'  # §3.1
    model.feed_forward = 'relu'  # §3.3
    model.tie = 'all'  # §3.4
    model.scale_embeddings = True

    config.optimizer = optimizer = ConfigDict()  # §5.3
    optimizer.name = 'adam'
    optimizer.b1 = 0.9
    optimizer.b2 = 0.98
    optimizer.eps = 1e-9
    optimizer.schedule = 'noam(warmup=4000)'

    config.train = train = ConfigDict()
    train.steps = 100_000
    train.loss = 'cross_entropy(label_smoothing=0.1)'  # §5.4

    config.evaluation = evaluation = ConfigDict()  # §6.1
    evaluation.decode = 'beam(beams=4, alpha=0.6)'
    evaluation.extra_length = 50  # the longest translation: source + 50
    evaluation.average = 5  # checkpoints

    config.checkpoint = checkpoint = ConfigDict()
    checkpoint.every = 1_500  # ten minutes, as the paper saved them
    checkpoint.keep = 5
    return config
