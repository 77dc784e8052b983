"""What every command shares: flags out of settings, tables, units and texts."""
