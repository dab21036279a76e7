"""Generators of random numbers go on elsewhere."""

import numpy as np
import pytest

from log1pnmf._common.archive import read_archive, write_archive
from log1pnmf._common.checks import check_known, random_from_parts, random_parts


@pytest.mark.parametrize("name", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
@pytest.mark.parametrize("kind", [np.random.Generator, np.random.RandomState])
def test_random_numbers_go_on(tmp_path, name, kind):
    rng = kind(getattr(np.random, name)(5))
    rng.standard_normal(3)
    write_archive(tmp_path / "file", {}, {"kind": "random", "state": random_parts(rng)})
    again = random_from_parts(read_archive(tmp_path / "file")[1]["state"])
    assert type(again) is kind
    np.testing.assert_array_equal(again.standard_normal(7), rng.standard_normal(7))
    np.testing.assert_array_equal(again.permutation(9), rng.permutation(9))


def test_unknown_generators_are_refused():
    class Strange:
        def get_state(self, *, legacy):
            return {"bit_generator": "Strange"}

    with pytest.raises(ValueError, match=r"random_state must use one of MT19937, .* got Strange"):
        check_known(Strange())
