"""References, losses and the gate. NaN never passes."""
