"""Xavier initializer (Glorot and Bengio 2010, equation 16), as in tensor2tensor."""

from flaxformer_lite.init.base import Init, uniform_with_variance


class Xavier(Init):
    """Uniform with variance 2 / (fan_in + fan_out); all heads count as one matrix.

    Source: Glorot and Bengio 2010. It suits most models, and is the default.

    Examples:
      >>> import flaxformer_lite as fl
      >>> model = fl.Transformer(vocab_size=100, initializer=fl.init.Xavier())
    """

    def matrix(self, key, fan_in, fan_out, name):
        variance = 2 / (fan_in + fan_out)
        return uniform_with_variance(key, fan_in, fan_out, variance)
