"""The work of the commands without their printing: read logs and join those of one run or one benchmark."""
