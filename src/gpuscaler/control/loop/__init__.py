"""The control loop: observe, save, act, plan, save, send."""
