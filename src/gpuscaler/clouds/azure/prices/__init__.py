"""Prices of machines on Azure: the Retail Prices API, checks of their plausibility, the shipped prices."""
