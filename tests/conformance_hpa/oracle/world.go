package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	scaling "k8s.io/api/autoscaling/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	v1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	autoscalingclient "k8s.io/client-go/kubernetes/typed/autoscaling/v2"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/scale"
	metrics "k8s.io/kubernetes/pkg/controller/podautoscaler/metrics"
)

// world is everything that the controller queries: scales, its own objects, the metrics APIs, the known kinds, and an event listener.
type world struct {
	// The controller does not call methods that are not overridden.
	meta.RESTMapper
	autoscalingclient.HorizontalPodAutoscalerInterface

	began    time.Time
	hpa      *autoscaling.HorizontalPodAutoscaler
	replicas int32
	observed int32
	metrics  map[string]Metric
	pods     []core.Pod
	rescales []string
}

// see applies the observations of a step. Something else may have scaled the target since the last one.
func (w *world) see(step *Step) {
	if step.Replicas != nil {
		w.replicas = *step.Replicas
	}
	w.observed = w.replicas
	if step.Observed != nil {
		w.observed = *step.Observed
	}
	w.pods, w.metrics, w.rescales = step.Pods, step.Metrics, nil
}

// shift moves the times of a pod, which are seconds since 1970 in a case, to those of the bubble.
func (w *world) shift(pod *core.Pod) {
	move := func(t v1.Time) v1.Time { return v1.NewTime(w.began.Add(t.Sub(time.Unix(0, 0)))) }
	if pod.Status.StartTime != nil {
		moved := move(*pod.Status.StartTime)
		pod.Status.StartTime = &moved
	}
	for i := range pod.Status.Conditions {
		pod.Status.Conditions[i].LastTransitionTime = move(pod.Status.Conditions[i].LastTransitionTime)
	}
}

func (w *world) RESTMappings(kind schema.GroupKind, _ ...string) ([]*meta.RESTMapping, error) {
	resource := schema.GroupVersionResource{Group: kind.Group, Version: "v1", Resource: "targets"}
	return []*meta.RESTMapping{{Resource: resource, GroupVersionKind: kind.WithVersion("v1")}}, nil
}

func (w *world) Scales(string) scale.ScaleInterface { return scales{w} }

type scales struct{ *world }

func (s scales) Get(context.Context, schema.GroupResource, string, v1.GetOptions) (*scaling.Scale, error) {
	return &scaling.Scale{
		Spec:   scaling.ScaleSpec{Replicas: s.replicas},
		Status: scaling.ScaleStatus{Replicas: s.observed, Selector: "app=serving"},
	}, nil
}

func (s scales) Update(_ context.Context, _ schema.GroupResource, scale *scaling.Scale, _ v1.UpdateOptions) (*scaling.Scale, error) {
	s.replicas = scale.Spec.Replicas
	return scale, nil
}

func (s scales) Patch(context.Context, schema.GroupVersionResource, string, types.PatchType, []byte, v1.PatchOptions) (*scaling.Scale, error) {
	return nil, errors.New("the controller patches no scale")
}

func (w *world) HorizontalPodAutoscalers(string) autoscalingclient.HorizontalPodAutoscalerInterface {
	return w
}

func (w *world) UpdateStatus(
	_ context.Context, hpa *autoscaling.HorizontalPodAutoscaler, _ v1.UpdateOptions,
) (*autoscaling.HorizontalPodAutoscaler, error) {
	w.hpa = hpa
	return hpa, nil
}

func (w *world) metric(name string) (Metric, error) {
	found, known := w.metrics[name]
	if !known {
		return found, fmt.Errorf("the case has no metric %s", name)
	}
	if found.Error != "" {
		return found, errors.New(found.Error)
	}
	return found, nil
}

func (w *world) samples(name string) (metrics.PodMetricsInfo, time.Time, error) {
	found, err := w.metric(name)
	if err != nil {
		return nil, time.Time{}, err
	}
	info := metrics.PodMetricsInfo{}
	for pod, sample := range found.Pods {
		info[pod] = metrics.PodMetric{Value: sample.Value, Timestamp: w.began.Add(seconds(sample.At)), Window: seconds(sample.Window)}
	}
	return info, time.Now(), nil
}

func (w *world) GetResourceMetric(
	_ context.Context, resource core.ResourceName, _ string, _ labels.Selector, container string,
) (metrics.PodMetricsInfo, time.Time, error) {
	return w.samples(string(resource) + "/" + container)
}

func (w *world) GetRawMetric(name string, _ string, _, _ labels.Selector) (metrics.PodMetricsInfo, time.Time, error) {
	return w.samples(name)
}

func (w *world) GetObjectMetric(
	name string, _ string, _ *autoscaling.CrossVersionObjectReference, _ labels.Selector,
) (int64, time.Time, error) {
	found, err := w.metric(name)
	return found.Object, time.Now(), err
}

func (w *world) GetExternalMetric(name string, _ string, _ labels.Selector) ([]int64, time.Time, error) {
	found, err := w.metric(name)
	return found.Series, time.Now(), err
}

// Event and similar methods receive the controller's events; only those about rescaling are kept, the rest is also in conditions.
func (w *world) Event(_ runtime.Object, _, reason, message string) {
	if reason == "SuccessfulRescale" {
		w.rescales = append(w.rescales, message)
	}
}

func (w *world) Eventf(object runtime.Object, kind, reason, format string, arguments ...any) {
	w.Event(object, kind, reason, fmt.Sprintf(format, arguments...))
}

func (w *world) AnnotatedEventf(
	object runtime.Object, _ map[string]string, kind, reason, format string, arguments ...any,
) {
	w.Eventf(object, kind, reason, format, arguments...)
}

// inOrder lists the pods in the order of the case: the controller's messages name the first one that it rejects.
type inOrder struct {
	coreinformers.PodInformer
	world *world
}

func (p inOrder) Lister() listers.PodLister { return podLister{world: p.world} }

type podLister struct {
	listers.PodLister
	listers.PodNamespaceLister
	world *world
}

func (p podLister) Pods(string) listers.PodNamespaceLister { return p }

func (p podLister) List(labels.Selector) ([]*core.Pod, error) {
	found := make([]*core.Pod, len(p.world.pods))
	for i := range p.world.pods {
		found[i] = &p.world.pods[i]
	}
	return found, nil
}

// silent is the event sink of a broadcaster that receives no events.
type silent struct{}

func (silent) Events(string) coreclient.EventInterface { return nil }
