"""What `temper run` does, in parts that other commands use as well.

submit    job file -> uploaded policy -> created job
follow    watch a job to its end, drawn on a terminal or written as lines
display   where the drawing goes
stops     Ctrl-C once is a request, twice an order
run       platform (own or found) + submit + follow + summary + report, then everything down again
"""
