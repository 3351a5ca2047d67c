"""What is launched: launch templates, volumes, the choice of type and zone."""
