"""The commands of the router: for whoever submits builds, and for whoever runs a control plane."""
