"""``temper serve rollout --model DIR``: the rollout engine behind HTTP, without bus or platform.

    app -> gate (key, size, number)     chat, text -> params, talk, calls     tokens (ids in, ids out)     control
      -> front -> fleet (variant, canary) -> lane (replicas, router) -> engine/base
              -> generation -> stops -> decode

Nothing here computes a token, and nothing below ``generation`` knows text. ``canary/state``, ``canary/evidence``, ``route``
and ``variants/evidence`` are pure.
"""
