"""Shared by every command: flags from settings, tables, units and texts."""
