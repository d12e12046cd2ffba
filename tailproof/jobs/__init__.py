"""What a command does: check, fuzz, replay, prove, the seed table, the bug bank."""
