"""Virtual time: traces replayed through the production planner on the simulated cloud."""
