"""Every method on every task: what leanbayes gains, and where others are ahead."""
