"""Settings: schema, presets, files, command-line values, and members that settings name."""
