"""What the runner's ports are made of: buildah, namespaces, cgroups, files, the router."""
