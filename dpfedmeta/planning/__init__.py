"""From settings to a plan, one file for each question; or the reason why there is none."""
