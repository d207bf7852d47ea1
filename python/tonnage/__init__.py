"""Tonnage's part inside a Python process. `tonnage run` injects it; nothing here needs to be imported by a program."""
