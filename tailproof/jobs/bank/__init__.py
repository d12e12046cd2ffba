"""The bug bank: public fault reports as traces with the values that are right."""
