"""The control loop: observe, write down, act, plan, write down, send."""
