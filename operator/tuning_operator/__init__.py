"""The Kubernetes side of trtfleet: starts workers as Jobs, signs and publishes what they prove, shows how far they are."""
