"""The admission checks: each has a stable id, a severity, and evidence in words and numbers.

`base` is what a check is; `static` reads the asset's files, `runtime` starts it, `semantic` judges its verifier.
"""
