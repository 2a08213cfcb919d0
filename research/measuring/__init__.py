"""Timing, facts about the machine and counts of calls."""
