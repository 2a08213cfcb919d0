"""Tables and pages, made from recipes and from files of results."""
