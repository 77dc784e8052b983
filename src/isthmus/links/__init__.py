"""Server-agent links: hello and welcome, dials and answers over a session."""
