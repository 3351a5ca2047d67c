"""What ``gpuscaler metrics`` runs: settings, rules, the service, and what an operator should mend."""
