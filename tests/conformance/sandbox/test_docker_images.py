"""Images that are not this host's programs: a root's tar, a Dockerfile. Both hold one static busybox and no Python."""

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from tests.conformance.sandbox.conftest import LIMITS

from temper.runtime.errors import Rejected
from temper.sandbox.engine.base import Command, Outcome

PLACES = ("bin", "dev", "etc", "proc", "sbin", "sys", "tmp", "work")


def applets(busybox: str) -> list[str]:
    return subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split()


@pytest.fixture(scope="module")
def root_tar() -> bytes:
    busybox = shutil.which("busybox")
    if busybox is None or b"/ld-linux" in Path(busybox).read_bytes():
        pytest.skip("busybox-static is not installed (make apt)")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as out:
        for name in PLACES:
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            out.addfile(info)
        out.add(busybox, "bin/busybox")
        for name in applets(busybox):
            info = tarfile.TarInfo(f"bin/{name}")
            info.type, info.linkname = tarfile.SYMTYPE, "busybox"
            if name != "busybox":
                out.addfile(info)
    return content.getvalue()


@pytest.mark.parametrize("how", ["rootfs", "dockerfile"])
async def test_an_image_of_the_users_own_runs(
    how: str, root_tar: bytes, tmp_path: Path, docker_url: str
) -> None:
    from temper.sandbox.engine.docker import DockerBackend, ImageSource

    (tmp_path / "root.tar").write_bytes(root_tar)
    (tmp_path / "Dockerfile").write_text("FROM scratch\nADD root.tar /\nENV COLOUR=blue\n")
    source = {
        "rootfs": ImageSource(rootfs=str(tmp_path / "root.tar")),
        "dockerfile": ImageSource(name="temper-test:1", dockerfile=str(tmp_path / "Dockerfile")),
    }[how]
    backend = DockerBackend(
        slots=1, state_dir=tmp_path / "state", url=docker_url, source=source, runtime="", first_uid=380_000
    )
    await backend.start()
    try:
        assert any("no python3" in note for note in backend.capabilities.notes)
        sandbox = await backend.create("a", LIMITS)
        said = await sandbox.execute(
            Command(("sh", "-c", "id -u; echo $COLOUR; touch /x; echo 1 > a")), LIMITS
        )
        lines = said.stdout.split(b"\n")
        assert lines[0] == b"380000"
        assert lines[1] == (b"blue" if how == "dockerfile" else b"")
        assert b"Read-only" in said.stderr
        assert await sandbox.get_file("a", 10) == (b"1\n", False)
        with pytest.raises(Rejected, match="python"):
            await sandbox.python("1", LIMITS)
        assert await sandbox.list_processes() == []
        assert (await sandbox.execute(Command(("no-such",)), LIMITS)).outcome is Outcome.OK
        await sandbox.destroy()
    finally:
        await backend.close()


@pytest.mark.parametrize(
    ("source", "field"),
    [
        ({"rootfs": "/nowhere.tar"}, "docker.rootfs"),
        ({"dockerfile": "/nowhere/Dockerfile"}, "docker.dockerfile"),
    ],
)
async def test_an_image_that_cannot_be_had_names_its_setting(
    source: dict[str, str], field: str, tmp_path: Path, docker_url: str
) -> None:
    from temper.sandbox.engine.docker import DockerBackend, ImageSource

    backend = DockerBackend(slots=1, state_dir=tmp_path, url=docker_url, source=ImageSource(**source))
    with pytest.raises(Rejected, match=field):
        await backend.start()
