"""The implementations of commands: functions named after commands, in modules named after their declarations."""
