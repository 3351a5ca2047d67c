"""The process around the control loop: settings that change, pools that are discovered, leadership, clocks."""
