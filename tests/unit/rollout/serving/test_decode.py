"""Ids to text agrees with the tokenizer's own decoding, and never shows half a character."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.rollout.serving.world import tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from temper.rollout.serving.decode import Decoder, read_token_bytes
from temper.runtime.errors import Rejected

BYTE_LEVEL = tokenizer()
TABLE = read_token_bytes(BYTE_LEVEL)


def decode(ids: list[int]) -> str:
    decoder = Decoder(TABLE)
    return "".join(decoder.feed(each) for each in ids) + decoder.flush()


@given(st.text(max_size=40))
def test_byte_level_text_comes_back(text: str) -> None:
    ids = BYTE_LEVEL.encode(text, add_special_tokens=False).ids
    assert decode(ids) == BYTE_LEVEL.decode(ids, skip_special_tokens=True)


def sentencepiece() -> Tokenizer:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "\u2581hi", "x"]
    made = Tokenizer(
        models.BPE(
            vocab={each: number for number, each in enumerate(pieces)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens([AddedToken("</s>", special=True)])
    return made


@given(st.text(alphabet="x é\u4f60", min_size=1, max_size=12))
def test_sentencepiece_text_comes_back_without_its_dummy_blank(text: str) -> None:
    made = sentencepiece()
    ids = made.encode(text).ids
    decoder = Decoder(read_token_bytes(made))
    assert "".join(decoder.feed(each) for each in ids) + decoder.flush() == made.decode(ids) == text


def test_special_tokens_are_silent_and_have_a_label() -> None:
    end = BYTE_LEVEL.token_to_id("<|im_end|>")
    assert end is not None
    assert decode([end]) == ""
    assert TABLE.label(end) == "<|im_end|>"
    assert Decoder(TABLE, {end: "!"}).feed(end) == "!"


def test_ids_beyond_the_tokenizer_are_silent() -> None:
    assert decode([100_000]) == ""


def test_a_tokenizer_of_another_kind_is_refused() -> None:
    made = Tokenizer(models.WordLevel(vocab={"a": 0}, unk_token="a"))
    with pytest.raises(Rejected, match="not understood"):
        read_token_bytes(made)
