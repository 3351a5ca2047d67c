// Answers, one JSON line a case, what prometheus-adapter's own code makes of rules: which series they take, what these are called, which
// resources they are of, and what Prometheus is asked.
package main

import (
	"bufio"
	"encoding/json"
	"os"
	"sort"

	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	prom "sigs.k8s.io/prometheus-adapter/pkg/client"
	"sigs.k8s.io/prometheus-adapter/pkg/config"
	"sigs.k8s.io/prometheus-adapter/pkg/naming"
)

type Known struct {
	Group, Plural, Singular string
	Namespaced              bool
}

type Series struct {
	Name   string
	Labels map[string]string
}

type Ask struct {
	Series, Group, Resource, Namespace, Selector string
	Names                                        []string
	External                                     bool
}

type Case struct {
	Known  []Known
	Config string
	Series []Series
	Asks   []Ask
}

type Found struct {
	Taken     bool     `json:"taken"`
	Name      *string  `json:"name"`
	Resources []string `json:"resources"`
}

type Reply struct {
	Refused string    `json:"refused,omitempty"`
	Found   []Found   `json:"found"`
	Queries []*string `json:"queries"`
}

func main() {
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked Case
		if err := json.Unmarshal(line, &asked); err != nil {
			encoder.Encode(map[string]string{"error": err.Error()})
		} else {
			encoder.Encode(answer(&asked))
		}
		out.Flush()
	}
}

func answer(asked *Case) Reply {
	cfg, err := config.FromYAML([]byte(asked.Config))
	if err != nil {
		return Reply{Refused: err.Error()}
	}
	namers, err := naming.NamersFromConfig(append(cfg.Rules, cfg.ExternalRules...), mapper(asked.Known))
	if err != nil {
		return Reply{Refused: err.Error()}
	}
	reply := Reply{}
	if len(namers) == 0 {
		return reply
	}
	namer := namers[0]
	for _, one := range asked.Series {
		reply.Found = append(reply.Found, found(namer, one))
	}
	for _, one := range asked.Asks {
		reply.Queries = append(reply.Queries, query(namer, one))
	}
	return reply
}

func found(namer naming.MetricNamer, one Series) Found {
	series := prom.Series{Name: one.Name, Labels: model.LabelSet{}}
	for name, value := range one.Labels {
		series.Labels[model.LabelName(name)] = model.LabelValue(value)
	}
	result := Found{Taken: len(namer.FilterSeries([]prom.Series{series})) == 1, Resources: []string{}}
	if name, err := namer.MetricNameForSeries(series); err == nil {
		result.Name = &name
	}
	resources, _ := namer.ResourcesForSeries(series)
	for _, resource := range resources {
		result.Resources = append(result.Resources, resource.String())
	}
	sort.Strings(result.Resources)
	return result
}

func query(namer naming.MetricNamer, one Ask) *string {
	selector, err := labels.Parse(one.Selector)
	if err != nil {
		return nil
	}
	var text prom.Selector
	if one.External {
		text, err = namer.QueryForExternalSeries(one.Series, one.Namespace, selector)
	} else {
		resource := schema.GroupResource{Group: one.Group, Resource: one.Resource}
		text, err = namer.QueryForSeries(one.Series, resource, one.Namespace, selector, one.Names...)
	}
	if err != nil {
		return nil
	}
	result := string(text)
	return &result
}

func mapper(known []Known) meta.RESTMapper {
	plain := meta.NewDefaultRESTMapper(nil)
	groups := []schema.GroupVersionResource{}
	seen := map[string]bool{}
	for _, one := range known {
		scope := meta.RESTScopeRoot
		if one.Namespaced {
			scope = meta.RESTScopeNamespace
		}
		version := schema.GroupVersion{Group: one.Group, Version: "v1"}
		plain.AddSpecific(version.WithKind(one.Singular), version.WithResource(one.Plural), version.WithResource(one.Singular), scope)
		if !seen[one.Group] {
			seen[one.Group] = true
			groups = append(groups, schema.GroupVersionResource{Group: one.Group, Version: meta.AnyVersion, Resource: meta.AnyResource})
		}
	}
	return meta.PriorityRESTMapper{Delegate: plain, ResourcePriority: groups}
}
