"""The work of the commands without their printing: find and read files, plan and run trainings, save results."""
