"""Tests of the runner's mesh."""

import pytest
import tiny

from experiments.errors import UserError
from experiments.runtime import mesh


@pytest.mark.parametrize(
    ('sizes', 'message'),
    [
        (dict(fsdp=3), 'mesh.fsdp=3 .* must multiply to the number of devices, 4'),
        (dict(data=2), 'mesh.data=2, .* must multiply to the number of devices, 4'),
        (dict(fsdp=8), 'mesh.fsdp=8 .* must multiply to the number of devices, 4'),
    ],
    ids=str,
)
def test_a_mesh_that_does_not_multiply_to_the_devices_is_refused(sizes, message):
    with pytest.raises(UserError, match=message):
        mesh.make_mesh(**sizes)


@pytest.mark.parametrize('axis', ['fsdp', 'tensor'])
def test_an_axis_that_divides_nothing_is_refused(axis):
    sizes = dict(d_model=6, num_heads=2, d_ff=6, num_layers=1)
    variables = tiny.all_variables(tiny.model(**sizes))
    with pytest.raises(UserError, match=f'mesh.{axis}=4 shards no parameter'):
        mesh.check_divides(mesh.make_mesh(**{axis: 4}).mesh, variables)
    mesh.check_divides(mesh.make_mesh(**{axis: 2}).mesh, variables)
