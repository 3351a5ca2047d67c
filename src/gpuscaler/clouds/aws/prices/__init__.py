"""What machines cost: price lists, spot prices, reservations."""
