package main

import (
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// Case is one small cluster in Kubernetes' own JSON, as an API server stores it, with the pods to judge.
//
// Without Replay every pending pod is judged against every node of the unchanged cluster. With Replay pending pods are placed one
// after the other: each is judged at its turn on the nodes that its step lists, and is placed on the first one that accepts it.
type Case struct {
	Nodes                  []*v1.Node                      `json:"nodes"`
	Pods                   []*v1.Pod                       `json:"pods"`
	Pending                []*v1.Pod                       `json:"pending"`
	Namespaces             []*v1.Namespace                 `json:"namespaces"`
	PersistentVolumes      []*v1.PersistentVolume          `json:"persistentVolumes"`
	PersistentVolumeClaims []*v1.PersistentVolumeClaim     `json:"persistentVolumeClaims"`
	StorageClasses         []*storagev1.StorageClass       `json:"storageClasses"`
	CSINodes               []*storagev1.CSINode            `json:"csiNodes"`
	CSIDrivers             []*storagev1.CSIDriver          `json:"csiDrivers"`
	CSIStorageCapacities   []*storagev1.CSIStorageCapacity `json:"csiStorageCapacities"`
	VolumeAttachments      []*storagev1.VolumeAttachment   `json:"volumeAttachments"`
	Replay                 []Step                          `json:"replay"`
	// Explain requests the messages of the plug-ins as well.
	Explain bool `json:"explain"`
}

// Step places pending pod number Pod on the first of Nodes that accepts it, after the nodes in Add have joined the cluster. Without
// Nodes it places nothing.
type Step struct {
	Add   []*v1.Node `json:"add"`
	Pod   int        `json:"pod"`
	Nodes []string   `json:"nodes"`
}

// Answer has Pods for a plain case and Steps for a replay, in the order of the request.
type Answer struct {
	Pods  []Verdict `json:"pods,omitempty"`
	Steps []Verdict `json:"steps,omitempty"`
	Error string    `json:"error,omitempty"`
}

// Verdict lists, for each refused node, all plug-ins that refuse it. Failed lists plug-ins that returned an error instead of a
// verdict, on any node: they count as refusals there.
type Verdict struct {
	Rejected map[string][]string `json:"rejected"`
	Failed   []string            `json:"failed,omitempty"`
	Messages map[string][]string `json:"messages,omitempty"`
}

func (v *Verdict) reject(node, plugin, message string) {
	v.Rejected[node] = append(v.Rejected[node], plugin)
	if v.Messages != nil {
		v.Messages[node] = append(v.Messages[node], plugin+": "+message)
	}
}

func (v *Verdict) fail(plugin string) {
	for _, known := range v.Failed {
		if known == plugin {
			return
		}
	}
	v.Failed = append(v.Failed, plugin)
}
