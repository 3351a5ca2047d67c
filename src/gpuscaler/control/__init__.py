"""The controller: look, plan, write intent down, act, record."""
