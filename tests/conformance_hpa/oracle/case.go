package main

import (
	"encoding/json"

	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
)

// Case is one HorizontalPodAutoscaler and its observations over time.
type Case struct {
	// Autoscaler as the API server would accept it; defaults are filled in.
	Autoscaler autoscaling.HorizontalPodAutoscaler `json:"autoscaler"`
	Settings   Settings                            `json:"settings"`
	Steps      []Step                              `json:"steps"`
	// Read is an object that is only read; the other fields are then ignored.
	Read json.RawMessage `json:"read"`
}

// Settings are those of kube-controller-manager, in seconds.
type Settings struct {
	Tolerance             float64 `json:"tolerance"`
	Stabilization         float64 `json:"stabilization"`
	CPUInitialization     float64 `json:"cpuInitialization"`
	InitialReadinessDelay float64 `json:"initialReadinessDelay"`
}

// Step is one reconciliation. Times are seconds since the case began.
type Step struct {
	At float64 `json:"at"`
	// Replicas is the size that something else scaled the target to; nil leaves it unchanged.
	Replicas *int32 `json:"replicas"`
	// Observed is status.replicas of the scale; nil is the same as its spec.
	Observed *int32     `json:"observed"`
	Pods     []core.Pod `json:"pods"`
	// Metrics by name; resource metrics by resource/container.
	Metrics map[string]Metric `json:"metrics"`
}

// Metric is the answer of the metrics API: an error, or the values for its type, in thousandths.
type Metric struct {
	Error  string            `json:"error"`
	Pods   map[string]Sample `json:"pods"`
	Object int64             `json:"object"`
	Series []int64           `json:"series"`
}

// Sample is the value of one pod.
type Sample struct {
	Value  int64   `json:"value"`
	At     float64 `json:"at"`
	Window float64 `json:"window"`
}

// Answer holds one Result for each step of a case, or the reason why there is none. For an object that is only read, it holds the object
// as the API server stores it, or the validation errors.
type Answer struct {
	Error   string          `json:"error,omitempty"`
	Steps   []Result        `json:"steps,omitempty"`
	Kept    json.RawMessage `json:"kept,omitempty"`
	Refused []string        `json:"refused,omitempty"`
}

// Result is the outcome of one step of the controller.
type Result struct {
	Replicas   int32             `json:"replicas"`
	Desired    int32             `json:"desired"`
	Conditions []Condition       `json:"conditions"`
	Current    []json.RawMessage `json:"current"`
	Error      string            `json:"error"`
	Rescales   []string          `json:"rescales"`
}

// Condition is a condition with the time of its last change, in seconds since the case began.
type Condition struct {
	Type    string  `json:"type"`
	Status  string  `json:"status"`
	Reason  string  `json:"reason"`
	Message string  `json:"message"`
	Since   float64 `json:"since"`
}
