"""Federated training: plan, cohort, server step, loop, backends."""

from dpfedmeta.federation.plan import Plan, make_plan

__all__ = ["Plan", "make_plan"]
