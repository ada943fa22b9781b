"""The paper's base model (Table 3, first row), WMT14 English-German.

    python -m experiments.run --config=configs/wmt_base.py

The paper: 100,000 steps, 12 hours on 8 P100; newstest2013 BLEU 25.8, newstest2014 27.3
(compound-split tokenised). Each other row of Table 3 is an override or two of this one, such as
`--config.model.num_heads=4`.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
    config = ConfigDict()
    # Where pairs come from: a file of experiments/data/ and its arguments.
    config.data = 'tfds(name="wmt14_translate/de-en", source="en", target="de")'

    config.tokenizer = ConfigDict()
    config.tokenizer.vocab_size = 37_000

    config.batch = ConfigDict()
    # Target positions a batch, over all devices: rows × length.
    config.batch.tokens = 25_000
    # Training pairs with a longer side are counted and left out; evaluation takes all.
    config.batch.max_length = 256
    # Several pairs a row; or else rows of like length.
    config.batch.packed = True

    config.model = model = ConfigDict()
    model.d_model = 512
    model.num_layers = 6
    model.num_heads = 8
    model.d_k = placeholder(int)  # empty: d_model / num_heads
    model.d_v = placeholder(int)
    model.d_ff = 2048
    # The decoder's own, and its attention to the source; empty: as the encoder's.
    model.decoder_num_layers = placeholder(int)
    model.decoder_num_heads = placeholder(int)
    model.decoder_num_kv_heads = placeholder(int)
    model.decoder_d_k = placeholder(int)
    model.decoder_d_v = placeholder(int)
    model.decoder_d_ff = placeholder(int)
    model.cross_num_heads = placeholder(int)
    model.cross_num_kv_heads = placeholder(int)
    model.cross_d_k = placeholder(int)
    model.cross_d_v = placeholder(int)
    model.dropout = 0.1
    model.architecture = 'encoder_decoder'
    model.attention = 'softmax'
    model.decoder_attention = placeholder(
        str
    )  # of the decoder to itself; empty: as attention
    model.cross_attention = placeholder(str)  # empty: as attention
    model.projections = True  # False: self-attention has no matrices
    model.num_kv_heads = placeholder(
        int
    )  # heads with keys of their own; empty: num_heads
    model.positions = 'sinusoidal'
    model.decoder_positions = placeholder(str)  # empty: as positions
    model.cross_positions = 'none'  # of queries and keys in cross-attention
    model.norm = 'layer'
    model.decoder_norm = placeholder(str)  # empty: as norm; and so on
    model.residual = 'post_norm'
    model.decoder_residual = placeholder(str)
    model.feed_forward = 'relu'
    model.decoder_feed_forward = placeholder(str)
    model.parallel = False  # attention and feed-forward side by side in a block
    model.dropout_kind = 'elements'  # or whole 'tokens'
    model.head_dropout = 0.0  # of whole heads
    model.layer_drop = 0.0  # of whole layers
    model.init = placeholder(str)  # empty: xavier, or what the residual asks for
    model.tie = 'all'
    model.scale_embeddings = True
    model.dtype = 'float32'

    config.optimizer = optimizer = ConfigDict()
    # Or 'adamw', or any other of optax with its own arguments: 'lion(b1=0.95)', 'contrib.muon'.
    optimizer.name = 'adam'
    # Of adam and adamw only.
    optimizer.b1 = 0.9
    optimizer.b2 = 0.98
    optimizer.eps = 1e-9
    optimizer.weight_decay = 0.0
    optimizer.clip = 0.0  # largest norm of the gradient; 0: any
    optimizer.schedule = 'noam(warmup=4000)'

    config.train = train = ConfigDict()
    # Training ends at the sooner of the two; 0: no limit.
    train.steps = 100_000
    train.epochs = 0
    # Or after so many evaluations without a better BLEU of the dev set; 0: never. Then the best
    # checkpoints are scored at the end.
    train.patience = 0
    train.label_smoothing = 0.1
    # One seed each; None: `seed`.
    train.seed = 0
    train.init_seed = placeholder(int)
    train.data_seed = placeholder(int)
    train.dropout_seed = placeholder(int)
    train.accumulate = 1
    train.on_nonfinite = 'stop'
    train.log_every = 100

    config.evaluation = evaluation = ConfigDict()
    evaluation.every = (
        5_000  # steps between evaluations of the dev set; 0: at the end only
    )
    evaluation.sets = ''  # the sets to score at the end, comma-separated; empty: all
    evaluation.decode = 'beam'  # or 'greedy', 'sample'
    evaluation.beams = 4
    evaluation.alpha = 0.6
    evaluation.extra_length = 50  # the longest translation: source + 50
    evaluation.temperature = 1.0  # of decode='sample', as are top_k (0: all) and top_p
    evaluation.top_k = 0
    evaluation.top_p = 1.0
    evaluation.average = 5  # checkpoints averaged for the final scores
    evaluation.average_of = 'last'
    evaluation.batch_tokens = 8_192

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 1_500
    config.checkpoint.keep = 5
    config.checkpoint.keep_best = 1
    return config
