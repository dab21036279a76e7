"""Random generators, and their state as plain values, from which they can be restored."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Random", "as_random", "check_known", "new_seed", "random_from_parts", "random_parts"]

Random: TypeAlias = np.random.Generator | np.random.RandomState

GENERATORS = {
    one.__name__: one
    for one in (
        np.random.MT19937,
        np.random.PCG64,
        np.random.PCG64DXSM,
        np.random.Philox,
        np.random.SFC64,
    )
}


def as_random(random_state: Any) -> Random:
    """Take an `np.random.Generator` as it is, anything else as scikit-learn does."""
    if isinstance(random_state, np.random.Generator):
        return random_state
    try:
        if isinstance(random_state, Integral):
            return np.random.RandomState(int(random_state))
        from sklearn.utils import check_random_state  # the usual call does without

        return check_random_state(random_state)
    except ValueError:
        raise ValueError(
            "random_state must be None, a whole number from 0 to 2**32 - 1, a RandomState or a Generator, "
            f"got {random_state!r}"
        ) from None


def new_seed(rng: Random) -> int:
    """Draw a whole number that can seed another generator."""
    most = np.iinfo(np.int32).max
    return int(rng.integers(most) if isinstance(rng, np.random.Generator) else rng.randint(most))


def random_parts(rng: Random) -> dict[str, Any]:
    """State of a generator of random numbers, as JSON holds it."""
    if isinstance(rng, np.random.Generator):
        state = dict(rng.bit_generator.state)
    else:
        state = dict(rng.get_state(legacy=False))
    return {"type": type(rng).__name__, "state": _listed(state)}


def check_known(rng: Random) -> None:
    """Refuse generators that `random_from_parts` cannot restore."""
    name = random_parts(rng)["state"]["bit_generator"]
    if name not in GENERATORS:
        raise ValueError(
            f"random_state must use one of {', '.join(GENERATORS)} where there is a checkpoint, got {name}"
        )


def random_from_parts(parts: Mapping[str, Any]) -> Random:
    """Restore a generator from the state that `random_parts` gave."""
    state = _arrayed(parts["state"])
    _check_positions(state)
    bits = GENERATORS[state["bit_generator"]]()
    if parts["type"] == "Generator":
        bits.state = state
        return np.random.Generator(bits)
    rng = np.random.RandomState(bits)
    rng.set_state(state)
    return rng


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": value.dtype.str}
    return {key: _listed(one) for key, one in value.items()} if isinstance(value, dict) else value


def _check_positions(state: Mapping[str, Any]) -> None:
    """Refuse positions outside of a generator's memory; NumPy does not check them."""
    inner = state["state"] if isinstance(state["state"], dict) else {}
    for name, place, most in (
        ("pos", inner.get("pos", 0), 624),
        ("buffer_pos", state.get("buffer_pos", 0), 4),
    ):
        if not isinstance(place, int) or not 0 <= place <= most:
            raise ValueError(f"{name} of the random numbers must be from 0 to {most}, got {place!r}")


def _arrayed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if set(value) == {"array", "dtype"}:
        if np.dtype(value["dtype"]).kind not in "iu":
            raise ValueError(f"random numbers are whole numbers, got {value['dtype']!r}")
        return np.array(value["array"], dtype=value["dtype"])
    return {key: _arrayed(one) for key, one in value.items()}
