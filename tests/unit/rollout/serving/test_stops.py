"""Stop strings: nothing leaks, nothing is held longer than needed, everything is cut at one place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.rollout.serving.decode import Decoder, TokenBytes
from temper.rollout.serving.stops import Cutter, StopWatcher

BYTES = TokenBytes(tuple(bytes((byte,)) for byte in range(256)), {}, drops_first_space=False)


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Character by character over the whole text so far: the first stop to complete, the earliest beginning."""
    for end in range(1, len(text) + 1):
        found = [(end - len(stop), stop) for stop in stops if text[:end].endswith(stop)]
        if found:
            at, stop = min(found)
            return text[:at], stop
    return text, None


def could_begin(tail: str, stops: list[str]) -> bool:
    return any(stop.startswith(tail) for stop in stops)


texts = st.text(alphabet="abé", max_size=24)
stop_lists = st.lists(st.text(alphabet="abé", min_size=1, max_size=5), max_size=4)


@given(texts, stop_lists, st.lists(st.integers(1, 4), min_size=1))
def test_any_chopping_shows_what_the_naive_reference_shows(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    watcher, shown, rest, at = StopWatcher(stops), "", text, 0
    while rest and watcher.matched is None:
        size = sizes[at % len(sizes)]
        shown += watcher.feed(rest[:size])
        rest, at = rest[size:], at + 1
    if watcher.matched is None:
        shown += watcher.flush()
    assert (shown, watcher.matched) == naive(text, stops)


@given(texts, stop_lists)
def test_text_is_held_only_while_a_stop_is_possible(text: str, stops: list[str]) -> None:
    watcher, shown = StopWatcher(stops), ""
    for end, character in enumerate(text, 1):
        shown += watcher.feed(character)
        if watcher.matched is not None:
            return
        held = text[len(shown) : end]
        assert not held or could_begin(held, stops)
        assert not any(could_begin(text[start:end], stops) for start in range(len(shown))), (
            "a longer tail fits"
        )


@given(texts, stop_lists, st.lists(st.integers(1, 4), min_size=1))
def test_tokens_and_text_are_cut_together_and_characters_never_split(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    table: list[bytes] = []
    raw, at = text.encode(), 0
    while raw:  # tokens of any size, so that characters lie across them
        table.append(raw[: sizes[at % len(sizes)]])
        raw, at = raw[sizes[at % len(sizes)] :], at + 1
    cutter = Cutter(Decoder(TokenBytes(tuple(table), {}, drops_first_space=False)), stops)
    shown = ""
    for token in range(len(table)):
        shown += cutter.feed(token)
        assert "\ufffd" not in shown
        if cutter.matched is not None:
            break
    else:
        shown += cutter.finish()
    expected, stop = naive(text, stops)
    assert (shown, cutter.matched) == (expected, stop)
    if stop is None:
        assert cutter.kept == len(table)
    else:
        covered = b"".join(table[: cutter.kept])
        assert covered.startswith(expected.encode())
        assert cutter.kept == 0 or len(b"".join(table[: cutter.kept - 1])) < len(expected.encode())


def test_vllm_3574_nothing_of_a_stop_leaks_from_a_stream() -> None:
    cutter = Cutter(Decoder(BYTES), ["DEFGHIJ"])
    shown = [cutter.feed(ord(each)) for each in "DEFGHIJ"]
    assert shown == [""] * 7
    assert cutter.matched == "DEFGHIJ"
    assert cutter.kept == 0


def test_vllm_2577_what_was_held_comes_out_when_the_stop_does_not() -> None:
    watcher = StopWatcher(["DEFGHIJ"])
    assert watcher.feed("DEF") == ""
    assert watcher.feed("G!") == "DEFG!"
    assert watcher.feed("D") == ""
    assert watcher.flush() == "D"


def test_a_short_stop_inside_a_longer_one_wins_when_it_completes_first() -> None:
    watcher = StopWatcher(["xabc", "ab"])
    assert watcher.feed("x") == ""
    assert watcher.feed("ab") == "x"
    assert watcher.matched == "ab"


@pytest.mark.parametrize("chunk", [1, 2, 3, 16])
def test_vllm_47616_a_stop_inside_a_speculated_run_cuts_ids_with_text(chunk: int) -> None:
    cutter, shown = Cutter(Decoder(BYTES), ["STOP"]), ""
    output = b"hi STOP and more"
    for start in range(0, len(output), chunk):
        for token in output[start : start + chunk]:
            if cutter.matched is None:
                shown += cutter.feed(token)
    assert shown == "hi "
    assert cutter.kept == 3


def test_an_output_that_ends_inside_a_character_shows_a_replacement() -> None:
    cutter = Cutter(Decoder(BYTES), [])
    assert cutter.feed("é".encode()[0]) == ""
    assert cutter.finish() == "\ufffd"
    assert cutter.kept == 1
