"""One folder for each tool that a person starts.

Doctor, pki, bootstrap, up, and those that look.
"""
