"""The controller: observe, plan, save intents, act, record."""
