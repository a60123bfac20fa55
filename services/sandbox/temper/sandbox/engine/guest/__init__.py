"""What runs on the far side of the line: launcher, init and interpreter.

    launcher   one per host; builds the private root once, then forks a sandbox for each request (knows all below)
    init       process 1 of one sandbox: joins its cgroup, closes the doors, runs commands, reaps orphans
    interpreter  the persistent Python of one sandbox; talks to the host over its own socket
    root       the read-only root that every sandbox sees
    seccomp    the filter of refused system calls
    syscalls   the kernel calls Python does not offer
    wire       length-prefixed JSON with file descriptors

Everything here imports the standard library only: the launcher starts without site-packages, and what it has
loaded is what a sandbox can find in its memory.
"""
