"""The figures the project promises, measured: ``make bench``."""
