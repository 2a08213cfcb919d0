"""Small errors planted in the code of functions, and whether the tests notice them."""
