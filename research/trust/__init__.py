"""Evidence that posteriors, kernels and files are what they claim to be."""
