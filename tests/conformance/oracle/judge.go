package main

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

// current is the snapshot that plug-ins see; it is replaced for each case, while the plug-ins stay.
type current struct{ *cache.Snapshot }

// judge is the default profile of kube-scheduler, of which only PreFilter, Filter and Reserve are called.
type judge struct {
	world    *world
	snapshot *current
	plugins  []fwk.Plugin
	reserve  fwk.ReservePlugin
}

func newJudge(ctx context.Context) (*judge, error) {
	metrics.Register()
	profile, err := filterProfile()
	if err != nil {
		return nil, err
	}
	client := fake.NewClientset()
	j := &judge{world: newWorld(client), snapshot: &current{cache.NewEmptySnapshot()}}
	made := map[string]fwk.Plugin{}
	handle, err := frameworkruntime.NewFramework(ctx, keeping(plugins.NewInTreeRegistry(), made), profile,
		frameworkruntime.WithClientSet(client),
		frameworkruntime.WithInformerFactory(j.world.factory),
		frameworkruntime.WithSnapshotSharedLister(j.snapshot),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(j.world.factory.Storage().V1().CSINodes().Lister())),
		frameworkruntime.WithParallelism(1),
	)
	if err != nil {
		return nil, err
	}
	for _, plugin := range handle.ListPlugins().Filter.Enabled {
		j.plugins = append(j.plugins, made[plugin.Name])
	}
	binding, ok := made[names.VolumeBinding].(fwk.ReservePlugin)
	if !ok {
		return nil, fmt.Errorf("%s no longer reserves volumes", names.VolumeBinding)
	}
	j.reserve = binding
	return j, nil
}

// filterProfile is the default profile without dynamic resources: pods with resource claims are no demand for the planner.
func filterProfile() (*config.KubeSchedulerProfile, error) {
	defaults, err := latest.Default()
	if err != nil {
		return nil, err
	}
	profile := defaults.Profiles[0]
	enabled := profile.Plugins.MultiPoint.Enabled[:0]
	for _, plugin := range profile.Plugins.MultiPoint.Enabled {
		if plugin.Name != names.DynamicResources {
			enabled = append(enabled, plugin)
		}
	}
	profile.Plugins.MultiPoint.Enabled = enabled
	return &profile, nil
}

// keeping makes a registry record the plug-ins it creates: the framework itself only reports the first that refuses.
func keeping(registry frameworkruntime.Registry, made map[string]fwk.Plugin) frameworkruntime.Registry {
	for name, factory := range registry {
		registry[name] = func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
			plugin, err := factory(ctx, args, handle)
			made[name] = plugin
			return plugin, err
		}
	}
	return registry
}

// cluster is a scheduler cache with one case in it.
type cluster struct {
	cache.Cache
	logger klog.Logger
}

func (j *judge) load(ctx context.Context, c *Case) (*cluster, error) {
	if err := j.world.load(c); err != nil {
		return nil, err
	}
	j.snapshot.Snapshot = cache.NewEmptySnapshot()
	here := &cluster{cache.New(ctx, time.Hour, nil), klog.FromContext(ctx)}
	for _, node := range c.Nodes {
		here.AddNode(here.logger, node)
	}
	for _, pod := range c.Pods {
		// The scheduler watches only unfinished pods.
		if pod.Spec.NodeName == "" || pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
			continue
		}
		if err := here.place(pod); err != nil {
			return nil, err
		}
	}
	return here, here.UpdateSnapshot(here.logger, j.snapshot.Snapshot)
}

func (c *cluster) place(pod *v1.Pod) error {
	if pod.UID == "" {
		pod.UID = types.UID(pod.Namespace + "/" + pod.Name)
	}
	return c.AddPod(c.logger, pod)
}

func (j *judge) answer(ctx context.Context, c *Case) (Answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	here, err := j.load(ctx, c)
	if err != nil {
		return Answer{}, err
	}
	if c.Replay != nil {
		steps, err := j.replay(ctx, c, here)
		return Answer{Steps: steps}, err
	}
	answer := Answer{Pods: make([]Verdict, 0, len(c.Pending))}
	nodes, err := j.snapshot.NodeInfos().List()
	if err != nil {
		return Answer{}, err
	}
	for _, pod := range c.Pending {
		answer.Pods = append(answer.Pods, j.verdict(ctx, pod, nodes, framework.NewCycleState(), c.Explain))
	}
	return answer, nil
}

// replay places pods one by one. Volumes that a step would bind or provision are assumed in the volume caches, as the scheduler
// itself does between choosing a node and binding.
func (j *judge) replay(ctx context.Context, c *Case, here *cluster) ([]Verdict, error) {
	verdicts := make([]Verdict, 0, len(c.Replay))
	for _, step := range c.Replay {
		for _, node := range step.Add {
			here.AddNode(here.logger, node)
		}
		if err := here.UpdateSnapshot(here.logger, j.snapshot.Snapshot); err != nil {
			return nil, err
		}
		if len(step.Nodes) == 0 {
			verdicts = append(verdicts, Verdict{Rejected: map[string][]string{}})
			continue
		}
		if step.Pod < 0 || step.Pod >= len(c.Pending) {
			return nil, fmt.Errorf("replay: pending pod %d of %d", step.Pod, len(c.Pending))
		}
		pod := c.Pending[step.Pod]
		nodes := make([]fwk.NodeInfo, 0, len(step.Nodes))
		for _, name := range step.Nodes {
			info, err := j.snapshot.NodeInfos().Get(name)
			if err != nil {
				return nil, err
			}
			nodes = append(nodes, info)
		}
		state := framework.NewCycleState()
		verdict := j.verdict(ctx, pod, nodes, state, c.Explain)
		verdicts = append(verdicts, verdict)
		for _, name := range step.Nodes {
			if len(verdict.Rejected[name]) > 0 {
				continue
			}
			if err := j.take(ctx, here, pod, name, state); err != nil {
				return nil, err
			}
			break
		}
	}
	return verdicts, nil
}

func (j *judge) take(ctx context.Context, here *cluster, pod *v1.Pod, node string, state fwk.CycleState) error {
	if status := j.reserve.Reserve(ctx, state, pod, node); !status.IsSuccess() {
		return status.AsError()
	}
	placed := pod.DeepCopy()
	placed.Spec.NodeName = node
	return here.place(placed)
}

// verdict runs every filter plug-in separately for one pod, so that all plug-ins that refuse a node are known, not only the first.
func (j *judge) verdict(ctx context.Context, pod *v1.Pod, nodes []fwk.NodeInfo, state fwk.CycleState, explain bool) Verdict {
	verdict := Verdict{Rejected: map[string][]string{}}
	if explain {
		verdict.Messages = map[string][]string{}
	}
	for _, plugin := range j.plugins {
		refused := func(node string, status *fwk.Status) {
			verdict.reject(node, plugin.Name(), status.Message())
			if status.Code() == fwk.Error {
				verdict.fail(plugin.Name())
			}
		}
		narrowed, filters := j.preFilter(ctx, plugin, pod, state, nodes, refused)
		for _, info := range nodes {
			node := info.Node().Name
			status := fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "not among the nodes PreFilter named")
			if narrowed.AllNodes() || narrowed.NodeNames.Has(node) {
				if !filters {
					continue
				}
				status = plugin.(fwk.FilterPlugin).Filter(ctx, state, pod, info)
			}
			if !status.IsSuccess() {
				refused(node, status)
			}
		}
	}
	return verdict
}

// preFilter returns the nodes that the plug-in's PreFilter admits, and whether its Filter must be called for them.
func (j *judge) preFilter(
	ctx context.Context, plugin fwk.Plugin, pod *v1.Pod, state fwk.CycleState, nodes []fwk.NodeInfo, refused func(string, *fwk.Status),
) (*fwk.PreFilterResult, bool) {
	first, ok := plugin.(fwk.PreFilterPlugin)
	if !ok {
		return nil, true
	}
	all, err := j.snapshot.NodeInfos().List()
	if err != nil {
		panic(err)
	}
	narrowed, status := first.PreFilter(ctx, state, pod, all)
	if status.IsSkip() {
		return nil, false
	}
	if !status.IsSuccess() {
		for _, info := range nodes {
			refused(info.Node().Name, status)
		}
		return nil, false
	}
	return narrowed, true
}
