"""The isthmus command line: finding sub-commands, completion, and the kubectl plugin."""
