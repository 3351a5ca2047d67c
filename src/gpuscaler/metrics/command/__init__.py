"""The implementation of ``gpuscaler metrics``: settings, rules, the service, and checks for problems that an operator should fix."""
