"""Interventions with a memory: keys are denied at a step because of what was seen at the step before."""
