"""Studies that belong to no paper: what the defaults of leanbayes are worth, on real data."""
