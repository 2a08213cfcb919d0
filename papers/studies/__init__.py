"""What is measured of trained networks for a paper, one study a folder or file."""
