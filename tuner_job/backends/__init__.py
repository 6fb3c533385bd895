"""Engine libraries behind one protocol. Imported only inside child processes."""
