"""A strict double of a cluster with the agent-sandbox controllers: it refuses what the real API would refuse.

Objects are held to the fields of agent-sandbox's v1beta1 resources (unknown ones are a 400, as with strict field validation), pod
templates to Kubernetes' own schema. A pod is a bubblewrap of this machine with an image of this machine's programs; an exec
enters its namespaces, and speaks the fifth protocol.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import kubernetes_validate
from aiohttp import WSMsgType, web

from temper.sandbox.engine.command import Stream
from temper.sandbox.engine.container.local import LocalProgram

EXTENSIONS = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/{namespace}"
CORE = "/apis/agents.x-k8s.io/v1beta1/namespaces/{namespace}"
TOKEN = "made-up"
UID = 1000

# Fields by path; a class checks the value, a mapping goes on, a list is a list of such.
METADATA = {"name": str, "labels": dict, "annotations": dict, "ownerReferences": list}
POD_TEMPLATE = {"spec": dict, "metadata": {"labels": dict, "annotations": dict}}
SCHEMAS: dict[str, dict[str, Any]] = {
    "sandboxtemplates": {
        "podTemplate": POD_TEMPLATE,
        "volumeClaimTemplates": list,
        "service": bool,
        "networkPolicy": {"ingress": list, "egress": list},
        "networkPolicyManagement": {"Managed", "Unmanaged"},
        "envVarsInjectionPolicy": {"Allowed", "Overrides", "Disallowed"},
        "volumeClaimTemplatesPolicy": {"Allowed", "Overrides", "Disallowed"},
    },
    "sandboxwarmpools": {
        "replicas": int,
        "sandboxTemplateRef": {"name": str},
        "updateStrategy": {"type": {"Recreate", "OnReplenish"}},
    },
    "sandboxclaims": {
        "warmPoolRef": {"name": str},
        "lifecycle": {
            "shutdownTime": datetime,
            "ttlSecondsAfterFinished": int,
            "shutdownPolicy": {"Delete", "DeleteForeground", "Retain"},
        },
        "additionalPodMetadata": {"labels": dict, "annotations": dict},
        "env": list,
        "volumeClaimTemplates": list,
    },
}
REQUIRED = {
    "sandboxtemplates": ("podTemplate",),
    "sandboxwarmpools": ("sandboxTemplateRef",),
    "sandboxclaims": ("warmPoolRef",),
}
KINDS = {
    "sandboxtemplates": "SandboxTemplate",
    "sandboxwarmpools": "SandboxWarmPool",
    "sandboxclaims": "SandboxClaim",
}


def faults(value: Any, schema: Any, path: str) -> list[str]:
    """What is wrong with a value."""
    match schema:
        case dict() if not isinstance(value, dict):
            return [f"{path}: not an object"]
        case dict():
            unknown = [f'unknown field "{path}.{name}"' for name in value if name not in schema]
            known = [(name, schema[name]) for name in value if name in schema]
            return unknown + [
                fault for name, inner in known for fault in faults(value[name], inner, f"{path}.{name}")
            ]
        case set():
            return [] if value in schema else [f"{path}: unsupported value {value!r}"]
        case type() if schema is datetime:
            try:
                datetime.fromisoformat(str(value))
            except (TypeError, ValueError):
                return [f"{path}: no date-time"]
            return []
        case type() if not isinstance(value, schema) or (schema is int and isinstance(value, bool)):
            return [f"{path}: no {schema.__name__}"]
        case _:
            return []


@dataclass
class Pod:
    """A pod that runs."""

    name: str
    labels: dict[str, str]
    claim: str
    home: Path
    process: asyncio.subprocess.Process
    init: int


class Cluster:
    """The double. `url` after `start`."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in KINDS}
        self.pods: dict[str, Pod] = {}
        self.refused: list[str] = []
        """What was refused, and why."""
        self.url = ""
        self.token_file = ""
        self._home = Path(tempfile.mkdtemp(prefix="temper-cluster-"))
        self._home.chmod(0o755)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        application = web.Application(client_max_size=1 << 24)
        for kind in KINDS:
            application.router.add_post(f"{EXTENSIONS}/{kind}", self._handler(self._post, kind))
            application.router.add_get(f"{EXTENSIONS}/{kind}", self._handler(self._list, kind))
            application.router.add_get(f"{EXTENSIONS}/{kind}/{{name}}", self._handler(self._get, kind))
            application.router.add_patch(f"{EXTENSIONS}/{kind}/{{name}}", self._handler(self._patch, kind))
            application.router.add_delete(f"{EXTENSIONS}/{kind}/{{name}}", self._handler(self._delete, kind))
        application.router.add_get(f"{CORE}/sandboxes/{{name}}", self._handler(self._sandbox, ""))
        application.router.add_get("/api/v1/namespaces/{namespace}/pods", self._handler(self._list_pods, ""))
        application.router.add_get(
            "/api/v1/namespaces/{namespace}/pods/{name}/exec", self._handler(self._exec, "")
        )
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        token = self._home / "token"
        token.write_text(TOKEN)
        self.token_file = str(token)

    async def close(self) -> None:
        for pod in list(self.pods.values()):
            await self._end(pod)
        for task in self._tasks:
            task.cancel()
        await self._runner.cleanup()
        shutil.rmtree(self._home, ignore_errors=True)

    def _handler(self, method: Any, kind: str) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            if request.headers.get("Authorization") != f"Bearer {TOKEN}":
                return _status(401, "Unauthorized")
            return await method(request, kind)

        return handle

    async def _post(self, request: web.Request, kind: str) -> web.StreamResponse:
        body = await request.json()
        wrong = self._judge(kind, body)
        if wrong:
            self.refused += wrong
            return _status(400, "; ".join(wrong))
        name = body["metadata"]["name"]
        if name in self.objects[kind]:
            return _status(409, f"{kind} {name!r} already exists")
        body["metadata"] |= {"uid": str(uuid4()), "creationTimestamp": datetime.now(UTC).isoformat()}
        self.objects[kind][name] = body
        if kind == "sandboxclaims":
            task = asyncio.create_task(self._bind(body))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return web.json_response(body, status=201)

    def _judge(self, kind: str, body: dict[str, Any]) -> list[str]:
        top = {"apiVersion": {"extensions.agents.x-k8s.io/v1beta1"}, "kind": {KINDS[kind]}}
        wrong = faults(body, top | {"metadata": METADATA, "spec": SCHEMAS[kind]}, "")
        spec = body.get("spec", {})
        wrong += [f".spec.{name}: Required value" for name in REQUIRED[kind] if name not in spec]
        if kind == "sandboxtemplates" and not wrong:
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "x"},
                "spec": spec["podTemplate"]["spec"],
            }
            try:
                kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
            except kubernetes_validate.ValidationError as error:
                wrong.append(f".spec.podTemplate.spec: {error.message}")
        return wrong

    async def _bind(self, claim: dict[str, Any]) -> None:
        """What the controllers do."""
        name = claim["metadata"]["name"]
        pool = self.objects["sandboxwarmpools"].get(claim["spec"]["warmPoolRef"]["name"])
        of = pool["spec"]["sandboxTemplateRef"]["name"] if pool else ""
        template = self.objects["sandboxtemplates"].get(of)
        if template is None:
            claim["status"] = _condition("False", "WarmPoolNotFound", "no such pool or template")
            return
        claim["status"] = _condition("False", "DependenciesNotReady", "the pod is not ready")
        pod = await self._run(f"pool-{uuid4().hex[:5]}", name, template["spec"]["podTemplate"])
        self.pods[pod.name] = pod
        if name not in self.objects["sandboxclaims"]:
            await self._end(pod)
            return
        claim["status"] = _condition("True", "DependenciesReady", "") | {"sandbox": {"name": f"sb-{name}"}}

    async def _run(self, name: str, claim: str, template: dict[str, Any]) -> Pod:
        home = self._home / name
        volumes = template["spec"]["volumes"]
        for volume in volumes:
            (home / volume["name"]).mkdir(parents=True)
            os.chown(home / volume["name"], UID, UID)
        container = template["spec"]["containers"][0]
        binds = [
            word
            for each in container["volumeMounts"]
            for word in ("--bind", str(home / each["name"]), each["mountPath"])
        ]
        info_read, info_write = os.pipe()
        process = await asyncio.create_subprocess_exec(
            *(
                "bwrap",
                "--unshare-ipc",
                "--unshare-pid",
                "--unshare-net",
                "--unshare-uts",
                "--unshare-cgroup",
                "--as-pid-1",
            ),
            *(
                "--die-with-parent",
                "--info-fd",
                str(info_write),
                "--cap-drop",
                "ALL",
                "--cap-add",
                "CAP_SETUID",
            ),
            *("--cap-add", "CAP_SETGID", "--hostname", template["spec"]["hostname"]),
            *(
                "--ro-bind",
                "/usr",
                "/usr",
                "--symlink",
                "usr/bin",
                "/bin",
                "--symlink",
                "usr/lib",
                "/lib",
                "--symlink",
                "usr/lib64",
                "/lib64",
            ),
            *(
                "--proc",
                "/proc",
                "--dev",
                "/dev",
                *binds,
                "--remount-ro",
                "/",
                "--chdir",
                container["workingDir"],
            ),
            *("setpriv", "--reuid", str(UID), "--regid", str(UID), "--clear-groups", *container["command"]),
            pass_fds=(info_write,),
            stdin=asyncio.subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"]},  # a pod has none of the node's
        )
        os.close(info_write)
        told = await asyncio.to_thread(_read_all, info_read)
        init = int(json.loads(told)["child-pid"])
        await asyncio.to_thread(_until_command, init)
        return Pod(name, dict(template["metadata"]["labels"]), claim, home, process, init)

    async def _end(self, pod: Pod) -> None:
        self.pods.pop(pod.name, None)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pod.init, signal.SIGKILL)
        await pod.process.wait()
        await asyncio.to_thread(shutil.rmtree, pod.home, ignore_errors=True)

    async def _list(self, request: web.Request, kind: str) -> web.StreamResponse:
        wanted = _selector(request)
        items = [
            each
            for each in self.objects[kind].values()
            if _selected(each["metadata"].get("labels", {}), wanted)
        ]
        return web.json_response({"items": items})

    async def _get(self, request: web.Request, kind: str) -> web.StreamResponse:
        found = self.objects[kind].get(request.match_info["name"])
        return web.json_response(found) if found else _status(404, "not found")

    async def _patch(self, request: web.Request, kind: str) -> web.StreamResponse:
        if request.headers["Content-Type"] != "application/merge-patch+json":
            return _status(415, "unsupported media type")
        found = self.objects[kind].get(request.match_info["name"])
        if found is None:
            return _status(404, "not found")
        patch = await request.json()
        wrong = faults(patch, {"metadata": METADATA, "spec": SCHEMAS[kind]}, "")
        if wrong:
            self.refused += wrong
            return _status(400, "; ".join(wrong))
        found["spec"] |= patch["spec"]
        return web.json_response(found)

    async def _delete(self, request: web.Request, kind: str) -> web.StreamResponse:
        found = self.objects[kind].pop(request.match_info["name"], None)
        if found is None:
            return _status(404, "not found")
        for pod in [each for each in self.pods.values() if each.claim == found["metadata"]["name"]]:
            await self._end(pod)
        return web.json_response(found)

    async def _sandbox(self, request: web.Request, _: str) -> web.StreamResponse:
        claim = request.match_info["name"].removeprefix("sb-")
        pod = next((each for each in self.pods.values() if each.claim == claim), None)
        if pod is None:
            return _status(404, "not found")
        annotations = {"agents.x-k8s.io/pod-name": pod.name}
        return web.json_response({"metadata": {"name": f"sb-{claim}", "annotations": annotations}})

    async def _list_pods(self, request: web.Request, _: str) -> web.StreamResponse:
        wanted = _selector(request)
        items = [
            {"metadata": {"name": pod.name, "labels": pod.labels}, "status": {"phase": "Running"}}
            for pod in self.pods.values()
            if _selected(pod.labels, wanted) and pod.process.returncode is None
        ]
        return web.json_response({"items": items})

    async def _exec(self, request: web.Request, _: str) -> web.StreamResponse:
        pod = self.pods.get(request.match_info["name"])
        if pod is None:
            return _status(404, "not found")
        unknown = set(request.query) - {"command", "container", "stdin", "stdout", "stderr", "tty"}
        if unknown or request.query.get("container") != "agent":
            self.refused.append(f"exec: {unknown or 'container'}")
            return _status(400, f"exec refused: {unknown or 'container'}")
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",), max_msg_size=0)
        await socket.prepare(request)
        await _serve(pod, socket, request.query.getall("command"), stdin=request.query.get("stdin") == "true")
        return socket


async def _serve(pod: Pod, socket: web.WebSocketResponse, command: list[str], *, stdin: bool) -> None:
    words = [
        *(
            "nsenter",
            "--target",
            str(pod.init),
            "--mount",
            "--pid",
            "--ipc",
            "--uts",
            "--net",
            "--cgroup",
            "--root",
            "--wd",
        ),
        *("--setuid", str(UID), "--setgid", str(UID), "--", *command),
    ]
    program = LocalProgram.begin(words, stdin=stdin, env={})
    feeding = asyncio.create_task(_feed(program, socket))
    pump = asyncio.create_task(_pump(program, socket))
    ended = asyncio.ensure_future(asyncio.wait({program.ended}))
    await asyncio.wait({ended, feeding}, return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    if not program.ended.done():  # the client has gone, and whoever stands for the program here with it
        pump.cancel()
        await asyncio.gather(pump, feeding, ended, return_exceptions=True)
        await program.close()
        return
    await asyncio.wait({pump}, timeout=0.2)  # what it left behind may hold its streams for ever
    for task in (pump, feeding):
        task.cancel()
    await asyncio.gather(pump, feeding, return_exceptions=True)
    code = program._process.returncode
    await program.close()
    with contextlib.suppress(ConnectionError):
        await socket.send_bytes(b"\3" + json.dumps(_ended(code if code >= 0 else 128 - code)).encode())
        await socket.close()


async def _pump(program: LocalProgram, socket: web.WebSocketResponse) -> None:
    while (got := await program.read()) is not None:
        await socket.send_bytes((b"\1" if got[0] is Stream.STDOUT else b"\2") + got[1])


async def _feed(program: LocalProgram, socket: web.WebSocketResponse) -> None:
    """Standard input. The client's farewell ends nothing: a program outlives its connection."""
    async for message in socket:
        if message.type is WSMsgType.BINARY and message.data[0] == 0:
            await program.write(message.data[1:])
        elif message.type is WSMsgType.BINARY and message.data[0] == 255:
            await program.finish_input()


def _ended(code: int) -> dict[str, Any]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    cause = {"reason": "ExitCode", "message": str(code)}
    return {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]}}


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "status": "Failure", "message": message}, status=code)


def _condition(status: str, reason: str, message: str) -> dict[str, Any]:
    return {"conditions": [{"type": "Ready", "status": status, "reason": reason, "message": message}]}


def _selector(request: web.Request) -> dict[str, str]:
    text = request.query.get("labelSelector", "")
    return dict(part.split("=", 1) for part in text.split(",") if part)


def _selected(labels: dict[str, str], wanted: dict[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in wanted.items())


def _read_all(descriptor: int) -> str:
    with os.fdopen(descriptor) as file:
        return file.read()


def _until_command(init: int) -> None:
    """Until the pod's own command runs: an exec before that would enter half a pod."""
    import time

    for _ in range(2000):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{init}/cmdline").read_bytes().startswith(b"/bin/sh\0"):
                return
        time.sleep(0.005)
