"""The privacy part of a plan: noise, sums, samplers and targets, solved from settings."""
