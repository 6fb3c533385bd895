"""A run over store records: discover, explore, final, publish. Workers are alike and need no coordinator."""
