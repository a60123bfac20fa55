from pathlib import Path

from temper.client.platform.space import FULL_BYTES, ROOM_BYTES, Space, free_bytes


def test_a_full_disk_is_told_once_and_mended_once_when_there_is_room():
    free = [ROOM_BYTES, FULL_BYTES, FULL_BYTES - 1, 0, ROOM_BYTES - 1, ROOM_BYTES, ROOM_BYTES, 0, ROOM_BYTES]
    said, mended = [], []
    space = Space(
        Path("/data"), say=said.append, mend=lambda: mended.append(len(free)), free=lambda _: free.pop(0)
    )
    while free:
        space.look()
    assert mended == [3, 0]
    assert said == [
        "the disk is full: 15 MB free in /data; everything waits for room",
        "there is room again: 64 MB free",
        "the disk is full: 0 MB free in /data; everything waits for room",
        "there is room again: 64 MB free",
    ]


def test_room_is_that_of_the_directorys_disk(tmp_path):
    assert free_bytes(tmp_path) > 0
