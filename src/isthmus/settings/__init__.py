"""Every setting, declared once: flags, defaults, validation and help come from here."""
