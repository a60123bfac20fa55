"""Job files: read, checked in full before anything starts, turned into a `JobSpec`.

load      text + overrides -> JobFile, or every mistake at once
model     what a job file may say, with the defaults
checks    rules that concern more than one field
problems  mistakes in words: field path, what is allowed, nearest name
spec      JobFile + uploaded files -> JobSpec
policy    which files of a directory make a policy
"""

from temper.client.jobfile.load import load_job, parse_job
from temper.client.jobfile.model import JobFile
from temper.client.jobfile.problems import JobFileRejected, Problem

__all__ = ["JobFile", "JobFileRejected", "Problem", "load_job", "parse_job"]
