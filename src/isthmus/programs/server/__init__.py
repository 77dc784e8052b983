"""The server: agents and their links, clients and their dials, policy, shares, relays."""
