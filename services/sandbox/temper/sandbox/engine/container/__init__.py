"""What the container backends share: commands, the interpreter, limits and slots over a handful of calls.

    seam         what a kind of container must do: start a program, sweep, be removed
    sandbox      a sandbox over one container
    programs     running one program: its streams, its end, scripts of our own
    interpreter  the persistent Python over a program's three streams
    local        a program that a command of this host stands for
    files, processes   what is asked of programs inside where it cannot be seen from outside
    refused      the system calls that a container is refused
    backend      slots, forks and the end of all

`docker`, `gvisor` and `kubernetes` fill the seam. They know this; this knows no vendor.
"""
