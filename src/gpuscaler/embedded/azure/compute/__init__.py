"""The provider Microsoft.Compute: scale sets, their machines, SKUs, usages, capacity reservations."""
