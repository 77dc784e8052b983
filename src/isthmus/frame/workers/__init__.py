"""Several cores: a small parent process that accepts, and workers that serve.

The parent binds every port and hands each connection to a worker by passing its descriptor
(SCM_RIGHTS, unix(7)): those of clients to the least loaded, those of agents to the worker that they
ask for. A worker is a program of its own, in a process of its own; health, admin and audit log are
the parent's. With --workers=1 nothing of this is loaded.

parent.py      the parent as a program: starts, watches, drains, stops
process.py     one worker as its parent knows it, and starts it again
doorman.py     accepts, chooses and hands over
worker.py      the program inside a worker, and what it tells its parent
channel.py     the messages between parent and worker
passing.py     descriptors from one process to the other
operating.py   what the parent's ports show, merged from its workers' answers
exposition.py  metrics summed; metrics.py: the parent's own
"""
