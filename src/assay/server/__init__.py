"""The workbench: the jobs of the command line behind pages, a queue and accounts. It adds no second way of doing them.

`book.py` knows every job and its state, `roll.py` every worker, `shares.py` every link; `queue.py` hands jobs to
`worker.py`, which runs the command line in a child process; `kinds/` says which command a form stands for.
"""
