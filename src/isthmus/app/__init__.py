"""Settings in, running program out: server, agent, pki and up."""
