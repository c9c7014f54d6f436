"""The ways in which a plan reaches people. Each writes the bytes of the plan and nothing else."""
