"""The recommended recipe beside plain networks and MC dropout, and how it was found."""
