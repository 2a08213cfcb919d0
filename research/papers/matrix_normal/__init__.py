"""Matrix normal posteriors [matrix normal]."""
