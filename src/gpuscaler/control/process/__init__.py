"""The process around the loop: settings that change, pools that are found, leadership, clocks."""
