"""Fast variants: admitted by evidence, never by configuration.

``evidence`` (statistics, pure), ``golden`` (files of tasks), ``record`` (what an admission leaves, signed), ``admit``
(runs both variants and decides), ``__main__`` (the command).
"""
