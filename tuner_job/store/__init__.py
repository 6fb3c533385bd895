"""Records, claims, ledger, blobs, manifests, pointers and signatures over any object store."""
