"""Backends.

    base        the protocol a backend fills, and the types that cross it
    verdict     typed outcomes from evidence (pure)
    fake        deterministic twin, in memory
    namespaces  the default on Linux: kernel namespaces, cgroups, a filter
    process     rlimits and a private directory; isolation "weak"
    slots, launcher, launched, link, channel, watch, output, files, cgroups, groups, records
                what the two real backends share on the host's side
    guest       what runs inside

`namespaces` and `process` know the shared parts; those know `base`, `verdict` and `guest`; nothing here knows the
service above.
"""
