"""Which pods need a place: pending ones, and those on machines that are being taken away."""
