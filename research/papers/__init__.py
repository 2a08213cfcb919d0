"""The papers that leanbayes follows, a folder each."""
