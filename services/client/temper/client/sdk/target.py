"""Where a platform is: endpoints and token, given or read from the data directory of an embedded one."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from temper.runtime.errors import Rejected, Unavailable

Api = Literal["scheduler", "qa", "telemetry"]
APIS: tuple[Api, ...] = ("scheduler", "qa", "telemetry")
PLATFORM_FILE = "platform.json"


@dataclass(frozen=True, slots=True)
class Target:
    """A platform to talk to. Example: `Target({"scheduler": "127.0.0.1:7401", …}, token_file=Path("…/token"))`."""

    endpoints: Mapping[Api, str]
    """`host:port` of each service that serves an API."""
    token_file: Path | None = None
    """File with the bearer token; None for a server without one."""
    tls_ca_file: Path | None = None
    """Certificate authority; its presence turns TLS on."""

    def endpoint(self, api: Api) -> str:
        """Address of `api`; Rejected if it was not given."""
        try:
            return self.endpoints[api]
        except KeyError:
            hint = f"--endpoint {api}=HOST:PORT, or TEMPER_ENDPOINTS"
            raise Rejected(
                f"no address of the {api} service is known", field="endpoints", hint=hint
            ) from None

    def token(self) -> str | None:
        """The secret itself, read when it is needed and never shown."""
        if self.token_file is None:
            return None
        try:
            return self.token_file.read_text().strip()
        except OSError as error:
            raise Rejected(f"cannot read {self.token_file}: {error.strerror}", field="token_file") from None


def embedded(data_dir: Path) -> Target:
    """The platform that `temper up` or `temper run` left in `data_dir`. Unavailable if none runs there."""
    state = read_platform_file(data_dir)
    if state is None or not _alive(state["pid"]):
        raise Unavailable(
            f"no platform runs in {data_dir}", field="data_dir", hint=f"temper up --data-dir {data_dir}"
        )
    return Target(state["endpoints"], Path(state["token_file"]))


def broker(data_dir: Path) -> tuple[str, Path]:
    """URL and token file of that platform's broker, for its sandboxes. Unavailable if it runs no sandbox service."""
    embedded(data_dir)
    try:
        settings = tomllib.loads((data_dir / "run" / "sandbox.toml").read_text())
    except FileNotFoundError:
        raise Unavailable(f"the platform in {data_dir} runs no sandbox service") from None
    return settings["bus"]["url"], Path(settings["bus"]["token_file"])


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False  # killed before it could remove the file
    except PermissionError:
        pass
    return True


def read_platform_file(data_dir: Path) -> dict[str, Any] | None:
    """What the platform says about itself: pid, endpoints, token file, processes; None if there is no file."""
    path = data_dir / PLATFORM_FILE
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Rejected(f"{path} cannot be read: {error}", field="data_dir") from None


def parse_endpoints(texts: list[str]) -> dict[Api, str]:
    """`["scheduler=host:7001", "qa=host:7002"]`, or one bare `host:port` that answers for all."""
    endpoints: dict[Api, str] = {}
    for text in texts:
        name, equals, address = text.rpartition("=")
        if ":" not in address:
            raise Rejected(f"{text!r} is not host:port", field="endpoints", hint="scheduler=127.0.0.1:7001")
        if not equals:
            endpoints |= dict.fromkeys(APIS, address)
        else:
            endpoints[_api(name)] = address
    return endpoints


def _api(name: str) -> Api:
    for api in APIS:
        if api == name:
            return api
    raise Rejected(f"{name!r} serves no API", field="endpoints", hint=f"known: {', '.join(APIS)}")
