"""APIs of programs beside the cluster, named by APIServices: the part of an API server that Kubernetes calls aggregator."""
