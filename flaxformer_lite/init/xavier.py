"""Xavier initialisation (Glorot and Bengio 2010, equation 16), tensor2tensor's for the paper."""

from flaxformer_lite.init.base import Init, uniform


class Xavier(Init):
    """Uniform with variance 2 / (fan in + fan out), all heads counted as one matrix."""

    def matrix(self, key, fan_in, fan_out, name):
        return uniform(key, fan_in, fan_out, 2 / (fan_in + fan_out))
