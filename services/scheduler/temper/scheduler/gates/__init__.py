"""Gates: per domain, whether training may go on as it does, and what follows when it may not. Pure.

comparison   a proportion against a bound, a domain against its own past, over many domains and many looks
rates        what each held-out task did at an evaluation, in two characters a task
collapse     a domain that loses all success in training, told from its groups alone
gate         verdicts, the last accepted evaluation, rollbacks ordered: what the books keep
following    verdict -> effects
"""
