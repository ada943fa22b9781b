"""Differences between the supported JAX versions.

Remove an entry when `flaxformer_lite.OLDEST_JAX` reaches the version that it names.
"""

import re
from typing import Any

import jax
from jax.extend import core

try:  # 0.8.0 moved it out of `jax.experimental`
    enable_x64 = jax.enable_x64
except AttributeError:
    # Newer versions, which pyright sees, lack it.
    from jax.experimental import enable_x64  # noqa: F401 # pyright: ignore[reportAttributeAccessIssue]

try:  # new in 0.10.0
    jaxprs_in_params = core.jaxprs_in_params
except AttributeError:

    def jaxprs_in_params(params: Any) -> Any:
        for value in params.values():
            for inner in value if isinstance(value, tuple) else (value,):
                if isinstance(inner, core.ClosedJaxpr):
                    yield inner.jaxpr
                elif isinstance(inner, core.Jaxpr):
                    yield inner


def with_sharding_constraint(x: jax.Array, spec: jax.P) -> jax.Array:
    """`jax.lax.with_sharding_constraint`, as a hint to XLA.

    Omitted where JAX before 0.8.0 can't check it: inside a `shard_map` over other axes.
    """
    try:
        return jax.lax.with_sharding_constraint(x, spec)
    except NotImplementedError:
        if jax.__version_info__ >= (0, 8):
            raise
        return x


def compile_with(lowered: jax.stages.Lowered, options: dict[str, Any]) -> Any:
    """Compiles a program, ignoring compile options that this XLA lacks.

    `xla_cpu_scheduler_type` is new in jaxlib 0.9.1.
    """
    while True:
        try:
            return lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            unknown = re.search(r"No such compile option: '(\w+)'", str(error))
            if not unknown:
                raise
            options = {k: v for k, v in options.items() if k != unknown[1]}
