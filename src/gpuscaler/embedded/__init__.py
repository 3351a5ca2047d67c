"""The embedded cluster: API server, scheduler, kubelets and a cloud in one process, for the demo and the tests."""
