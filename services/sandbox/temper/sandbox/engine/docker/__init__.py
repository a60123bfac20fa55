"""Sandboxes as containers of a Docker engine.

    backend    slots, the engine's answers, reclaiming what a predecessor left
    client     the SDK on threads, attached streams on the event loop
    images     the image: by name, from a Dockerfile, from a root's tar, or this host's own programs
    container  one container: programs, sweeping, files, counters

A container holds its first process by a connection of this service: when that ends, however it ends, the container goes.
"""

from temper.sandbox.engine.docker.backend import DockerBackend
from temper.sandbox.engine.docker.images import ImageSource

__all__ = ["DockerBackend", "ImageSource"]
