"""What leanbayes costs, measured: ``python -m benchmarks`` fills results/bench and writes the page.

``harness`` knows how to measure, ``networks`` and ``methods`` what; ``step``, ``prediction``,
``startup``, ``scale`` and ``distributed`` measure, ``page`` tells.
"""
