package main

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"time"
	_ "unsafe" // for linkname

	autoscaling "k8s.io/api/autoscaling/v2"
	"k8s.io/client-go/informers"
	defaults "k8s.io/kubernetes/pkg/apis/autoscaling/v2"
	"k8s.io/kubernetes/pkg/controller/podautoscaler"
)

const namespace = "default"

// reconcile is the method that a worker of the controller calls for one HorizontalPodAutoscaler from its queue.
//
//go:linkname reconcile k8s.io/kubernetes/pkg/controller/podautoscaler.(*HorizontalController).reconcileAutoscaler
func reconcile(a *podautoscaler.HorizontalController, ctx context.Context, hpa *autoscaling.HorizontalPodAutoscaler, key string) error

// judge keeps a controller for each distinct Settings. Each case has its own key, and so its own history.
type judge struct {
	controllers map[Settings]*bench
	cases       int
}

// bench is a controller with its environment.
type bench struct {
	controller *podautoscaler.HorizontalController
	world      *world
}

func newJudge() *judge {
	return &judge{controllers: map[Settings]*bench{}}
}

func (j *judge) steps(c *Case) ([]Result, error) {
	b, found := j.controllers[c.Settings]
	if !found {
		b = newBench(c.Settings)
		j.controllers[c.Settings] = b
	}
	j.cases++
	hpa := &c.Autoscaler
	hpa.Namespace = namespace
	hpa.Name = fmt.Sprintf("case-%d", j.cases)
	// Quantities as the API server would have written them.
	if text, err := json.Marshal(hpa); err != nil {
		return nil, err
	} else if err := json.Unmarshal(text, hpa); err != nil {
		return nil, err
	}
	defaults.SetDefaults_HorizontalPodAutoscaler(hpa)
	began := time.Now()
	*b.world = world{began: began, hpa: hpa}
	var results []Result
	for _, step := range c.Steps {
		time.Sleep(time.Until(began.Add(seconds(step.At))))
		result, err := b.step(&step)
		if err != nil {
			return nil, err
		}
		results = append(results, result)
	}
	return results, nil
}

func newBench(settings Settings) *bench {
	factory := informers.NewSharedInformerFactory(nil, 0)
	w := &world{}
	pods := inOrder{factory.Core().V1().Pods(), w}
	controller := podautoscaler.NewHorizontalController(
		context.Background(), silent{}, w, w, w, w, factory.Autoscaling().V2().HorizontalPodAutoscalers(), pods, time.Hour,
		seconds(settings.Stabilization), settings.Tolerance, seconds(settings.CPUInitialization), seconds(settings.InitialReadinessDelay),
	)
	record(controller, w)
	return &bench{controller: controller, world: w}
}

func (b *bench) step(step *Step) (Result, error) {
	for i := range step.Pods {
		b.world.shift(&step.Pods[i])
	}
	b.world.see(step)
	hpa := b.world.hpa
	err := reconcile(b.controller, context.Background(), hpa, hpa.Namespace+"/"+hpa.Name)
	return b.world.result(err)
}

// result is the state of the world after a step.
func (w *world) result(err error) (Result, error) {
	result := Result{Replicas: w.replicas, Desired: w.hpa.Status.DesiredReplicas, Rescales: w.rescales}
	if err != nil {
		result.Error = err.Error()
	}
	for _, one := range w.hpa.Status.Conditions {
		since := one.LastTransitionTime.Sub(w.began).Seconds()
		result.Conditions = append(result.Conditions, Condition{string(one.Type), string(one.Status), one.Reason, one.Message, since})
	}
	for _, one := range w.hpa.Status.CurrentMetrics {
		text, err := json.Marshal(current(one))
		if err != nil {
			return result, err
		}
		result.Current = append(result.Current, text)
	}
	return result, nil
}

// current has the values of a metric's status in thousandths, for any type of metric; it is empty if there is none.
func current(status autoscaling.MetricStatus) map[string]int64 {
	var values autoscaling.MetricValueStatus
	switch {
	case status.Resource != nil:
		values = status.Resource.Current
	case status.ContainerResource != nil:
		values = status.ContainerResource.Current
	case status.Pods != nil:
		values = status.Pods.Current
	case status.Object != nil:
		values = status.Object.Current
	case status.External != nil:
		values = status.External.Current
	}
	found := map[string]int64{}
	if values.Value != nil {
		found["value"] = values.Value.MilliValue()
	}
	if values.AverageValue != nil {
		found["averageValue"] = values.AverageValue.MilliValue()
	}
	if values.AverageUtilization != nil {
		found["averageUtilization"] = int64(*values.AverageUtilization)
	}
	return found
}

// record makes the controller send its events to w instead of a broadcaster, which would deliver them later.
func record(controller *podautoscaler.HorizontalController, w *world) {
	field := reflect.ValueOf(controller).Elem().FieldByName("eventRecorder")
	reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).Elem().Set(reflect.ValueOf(w))
}

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second))
}
