"""A watched job in pictures. `view` folds updates into one value; the others only draw it.

view     updates -> what is known now (pure)
screen   bars and tables on a terminal
plain    one line per event, for logs and pipes
results  evaluations before and after, with intervals
summary  the numbers of a finished job as one JSON object
"""
