"""Commands that look at running programs: status, top, tunnels, agents, dashboard."""
