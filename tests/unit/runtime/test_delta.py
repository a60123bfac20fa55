import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.runtime.delta import Kind, apply, encode
from temper.runtime.errors import Rejected

WIDTHS = st.sampled_from([1, 2, 3, 4, 8])
KINDS = st.sampled_from(list(Kind))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[int, bytes, bytes]:
    width = draw(WIDTHS)
    count = draw(st.integers(0, 700))
    base = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 256, count * width, dtype=np.uint8)
    new = base.copy()
    for at in draw(st.lists(st.integers(0, max(0, count * width - 1)), max_size=20)) if count else []:
        new[at] ^= draw(st.integers(1, 255))
    return width, base.tobytes(), new.tobytes()


@given(pairs(), KINDS)
def test_a_delta_leads_from_its_base_to_the_new_bytes_in_every_bit(
    pair: tuple[int, bytes, bytes], kind: Kind
):
    width, base, new = pair
    delta = encode(base, new, width=width, kind=kind)
    assert (delta is None) == (base == new)
    target = bytearray(base)
    if delta is not None:
        apply(target, delta, width=width)
    assert bytes(target) == new


@given(st.binary(max_size=60), WIDTHS)
def test_bytes_that_are_no_delta_are_refused_or_harmless(noise: bytes, width: int):
    target = bytearray(width * 4)
    try:
        apply(target, noise, width=width)
    except Rejected:
        assert target == bytearray(width * 4)


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("harm", [lambda d: d[:-1], lambda d: d[:20], lambda d: d[:17] + b"\xff" + d[18:]])
def test_a_damaged_delta_is_refused(kind: Kind, harm):
    base = bytes(4000)
    delta = encode(base, b"\1\0\0\0" * 1000, width=4, kind=kind)
    assert delta is not None
    with pytest.raises(Rejected, match="delta"):
        apply(bytearray(base), harm(delta), width=4)


def test_a_delta_of_other_lengths_is_refused():
    with pytest.raises(Rejected, match="equal lengths"):
        encode(bytes(8), bytes(4), width=4, kind=Kind.XOR)
    with pytest.raises(Rejected, match="no elements of 4"):
        encode(bytes(7), bytes(7), width=4, kind=Kind.XOR)


@pytest.mark.parametrize(("share", "bound"), [(0.01, 0.03), (0.03, 0.08)])
@pytest.mark.parametrize("width", [2, 4])
def test_few_changes_are_few_bytes(share: float, bound: float, width: int):
    rng = np.random.default_rng(1)
    base = rng.integers(0, 256, (50_000, width), dtype=np.uint8)
    new = base.copy()
    changed = rng.random(len(base)) < share
    new[changed] = rng.integers(0, 256, (int(changed.sum()), width), dtype=np.uint8)
    for kind in Kind:
        delta = encode(base.tobytes(), new.tobytes(), width=width, kind=kind)
        assert delta is not None
        assert len(delta) <= bound * base.nbytes
