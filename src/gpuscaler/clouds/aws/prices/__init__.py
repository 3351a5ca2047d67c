"""Prices of machines: price lists, spot prices, reservations."""
