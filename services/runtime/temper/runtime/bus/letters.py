"""Dead letters on JetStream: messages that nobody could process, with the reason."""

from __future__ import annotations

from contextlib import suppress

from temper.runtime.bus.base import DeadLetter
from temper.runtime.bus.jetstream import JetStream, Missing
from temper.runtime.bus.pull import Reader
from temper.runtime.envelope import Envelope, decode, encode
from temper.runtime.errors import NotFound
from temper.runtime.topology import DEAD, PREFIX

REASON, SUBJECT = "temper-reason", "temper-subject"
LONGEST_REASON = 1000  # characters: a header, not a place for tracebacks


class DeadLetters:
    """The dead stream."""

    def __init__(self, js: JetStream) -> None:
        self._js = js

    async def add(self, subject: str, envelope: Envelope, body: bytes, reason: str, *, msg_id: str) -> int:
        """Record a letter; a second one with the same `msg_id` is dropped."""
        headers = encode(envelope) | {REASON: " ".join(reason.split())[:LONGEST_REASON], SUBJECT: subject}
        seq, _ = await self._js.publish(dead_subject(subject), body, headers, msg_id=msg_id)
        return seq

    async def read(self, *, after: int, limit: int) -> list[DeadLetter]:
        """Letters behind position `after`, oldest first."""
        letters: list[DeadLetter] = []
        reader = await Reader(self._js, DEAD, (f"{PREFIX}.dead.>",), after=after).open()
        try:
            for _ in range(min(limit, reader.waiting)):
                message, about = await reader.next()
                headers = message.headers or {}
                letters.append(
                    DeadLetter(
                        about.stream_seq,
                        headers.get(SUBJECT, message.subject),
                        headers.get(REASON, ""),
                        decode(headers),
                        message.data,
                        about.time,
                    )
                )
        finally:
            await reader.close()
        return letters

    async def retry(self, seq: int) -> None:
        """Publish the command again and drop the letter."""
        stored = await self._js.stored(DEAD, seq=seq)
        if stored is None:
            raise _no_letter(seq)
        envelope = decode(stored.headers)
        # The first publish may still be in the duplicate window, and a retry must not be taken for it.
        msg_id = f"{envelope.id}.retry-{seq}"
        await self._js.publish(stored.headers[SUBJECT], stored.data, encode(envelope), msg_id=msg_id)
        with suppress(Missing):  # somebody else retried it at the same time: one publish, one letter less
            await self._js.erase(DEAD, seq)

    async def drop(self, seq: int) -> None:
        """Forget the letter."""
        try:
            await self._js.erase(DEAD, seq)
        except Missing:
            raise _no_letter(seq) from None


def dead_subject(subject: str) -> str:
    """`temper.v1.cmd.rollout.job7` -> `temper.v1.dead.rollout.job7`."""
    rest = subject.removeprefix(f"{PREFIX}.").partition(".")[2]
    return f"{PREFIX}.dead.{rest or subject}"


def _no_letter(seq: int) -> NotFound:
    return NotFound(f"no dead letter {seq}", field="seq", hint="`temper dead list` shows them")
