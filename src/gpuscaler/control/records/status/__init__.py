"""What people and programs ask: status, why, pages, metrics, findings."""
