"""Parameters of posteriors and priors: their storage, transforms and scales."""
