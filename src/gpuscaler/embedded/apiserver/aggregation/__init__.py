"""APIs of programs beside the cluster, to which APIServices lead: the part of an API server that Kubernetes calls aggregator."""
