"""Faults: commands that are killed, stopped, short of disk or given changed files."""
