"""Evidence for leanbayes: what papers claim, what studies found and what everything costs.

``papers`` has a folder for each paper, ``studies`` what we measured for ourselves, ``benchmarks``
what steps, predictions and starts cost. ``publishing`` turns files of results into tables and
pages, ``measuring`` times and counts. ``python -m research`` runs all of it.
"""
