"""Several cores: a small parent process that accepts, and workers that serve.

The parent binds every port and hands each connection to a worker by passing its descriptor
(SCM_RIGHTS, unix(7)): those of clients to the least loaded, those of agents to the worker that they
ask for. A worker is a whole program in its own process; the parent has the health and admin ports
and the audit log. With --workers=1 none of this is loaded.

parent.py      the parent as a program: starts, watches, drains, stops
process.py     one worker as its parent sees it, and restarts it
doorman.py     accepts, chooses and hands over
worker.py      the program inside a worker, and what it tells its parent
channel.py     the messages between parent and worker
passing.py     descriptors from one process to the other
operating.py   what the parent's ports show, merged from its workers' answers
exposition.py  metrics summed; metrics.py: the parent's own
"""
