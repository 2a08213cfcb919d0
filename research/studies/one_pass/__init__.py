"""One pass against samples, on trained networks."""
