"""The isthmus command, one file per sub-command."""
