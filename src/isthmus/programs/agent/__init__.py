"""The agent: links to every server, dials to targets, and nodes' own connections."""
