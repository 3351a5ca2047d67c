"""Virtual time: replays traces through the production planner on the simulated cloud."""
