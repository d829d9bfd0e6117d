"""Events of pipeline schedules, whatever a stage takes."""
