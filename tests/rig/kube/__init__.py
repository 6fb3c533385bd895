"""A real Kubernetes on one machine: control plane, node with real pods, images, object store, Prometheus. See README.md."""
