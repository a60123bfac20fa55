from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.rollout.world import byte_codec

from temper.rollout.chat import BYTE_SPECIALS, byte_chat, byte_tokenizer, read_chat
from temper.rollout.codec import Answer, Codec, ToolText, clip
from temper.runtime.errors import Rejected

UNHURRIED = settings(deadline=None, max_examples=60)  # a busy machine is no failure
BOS, USER, ASSISTANT, CALL, RESULT, END = range(257, 263)
SHIPPED = Path(__file__).parents[3] / "examples" / "policies" / "byte"


def test_a_token_below_256_is_a_byte():
    text = "a é€\n\x00~"
    assert byte_codec().prompt(text) == [BOS, USER, *text.encode(), END, ASSISTANT]
    assert byte_codec().vocab_size == 256 + len(BYTE_SPECIALS) == 264


def test_turns_are_written_by_token():
    codec = byte_codec()
    assert codec.observation("4") == [RESULT, ord("4"), END, ASSISTANT]
    assert codec.call("1+1") == [CALL, *b"1+1", END]
    assert codec.answer("2") == [ord("2"), END]
    assert codec.stops == (END,)


def test_text_that_spells_a_role_token_stays_text():
    codec = byte_codec()
    assert codec.observation("<end>") == [RESULT, *b"<end>", END, ASSISTANT]


@UNHURRIED
@given(st.text(max_size=40))
def test_what_an_oracle_writes_is_read_back(text: str):
    codec = byte_codec()
    assert codec.read_turn(codec.answer(text)) == Answer(text)
    assert codec.read_turn(codec.call(text)) == ToolText(text)


def test_a_turn_without_end_says_nothing():
    assert byte_codec().read_turn([49, 50]) is None
    assert byte_codec().read_turn([]) is None


def test_words_before_a_call_are_thought():
    assert byte_codec().read_turn([49, CALL, 50, END]) == ToolText("2")


def test_bytes_that_are_not_text_are_replaced_and_never_fail():
    said = byte_codec().read_turn([0xFF, 49, END])
    assert isinstance(said, Answer)
    assert said.text.endswith("1")


@UNHURRIED
@given(st.text(max_size=200), st.integers(16, 64))
def test_a_clipped_text_fits_and_is_left_alone_if_it_does(text: str, limit: int):
    clipped = clip(text, limit)
    assert len(clipped.encode()) <= limit
    assert clipped == text or len(text.encode()) > limit


def test_a_clip_keeps_head_and_tail():
    assert clip("a" * 50 + "z" * 50, 23) == "a" * 10 + "..." + "z" * 10


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{", "not JSON"),
        (b'{"format": 2}', "only format 1"),
        (b'{"format": 1, "call_syntax": "xml"}', "'xml' is unknown"),
        (b'{"format": 1, "call_syntax": "compact", "tokens": {"bos": "<bos>"}}', "user, assistant"),
    ],
)
def test_a_bad_chat_file_is_refused_by_what_is_wrong(text: bytes, words: str):
    with pytest.raises(Rejected, match=words):
        read_chat(text)


def test_a_policy_without_its_files_is_refused():
    with pytest.raises(Rejected, match=r"no tokenizer\.json"):
        Codec.read({})
    with pytest.raises(Rejected, match="cannot be read"):
        Codec.read({"tokenizer.json": b"{}", "temper_chat.json": byte_chat()})
    other = byte_chat().replace(b"<end>", b"<stop>")
    with pytest.raises(Rejected, match="'<stop>' is not a token"):
        Codec.read({"tokenizer.json": byte_tokenizer(), "temper_chat.json": other})


def test_the_shipped_files_are_the_generated_ones():
    assert (SHIPPED / "tokenizer.json").read_bytes() == byte_tokenizer()
    assert (SHIPPED / "temper_chat.json").read_bytes() == byte_chat()
