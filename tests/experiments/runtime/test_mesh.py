"""Tests of the runner's device mesh."""

import pytest
import tiny

from experiments.errors import UserError
from experiments.runtime import mesh


@pytest.mark.parametrize('sizes', [dict(fsdp=3), dict(data=2), dict(fsdp=8)], ids=str)
def test_axes_that_do_not_multiply_to_the_devices_are_rejected(sizes):
    with pytest.raises(UserError, match='must multiply to the number of devices, 4'):
        mesh.make_mesh(**sizes)


@pytest.mark.parametrize('axis', ['fsdp', 'tensor'])
def test_axis_that_shards_no_parameter_is_rejected(axis):
    sizes = dict(d_model=6, num_heads=2, d_ff=6, num_layers=1)
    variables = mesh.abstract_variables(tiny.model(**sizes))
    with pytest.raises(UserError, match=f'mesh.{axis}=4 shards no parameter'):
        mesh.check_divides(mesh.make_mesh(**{axis: 4}).mesh, variables)
    mesh.check_divides(mesh.make_mesh(**{axis: 2}).mesh, variables)
