"""How a task is learned: one preset per published algorithm."""
