"""The tools that people start, one package for each.

They are doctor, pki, bootstrap, up, and the commands that show running programs.
"""
