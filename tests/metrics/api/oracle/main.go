// Answers, one JSON line a case, what Kubernetes' own code and custom-metrics-apiserver make of selectors, numbers, paths, values and errors.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta1"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	external "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

type Value struct {
	Namespace, Name string
	Number          float64
	Timestamp       int64
	Window          *int64
	Labels          map[string]string
}

type Case struct {
	Selector                   *string
	Number                     *float64
	Method, Target             string
	Kind, ApiVersion, Metric   string
	MetricSelector             string
	Values                     []Value
	Error, Resource, Name, Why string
	User                       string
}

type Requirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values"`
}

type Reply struct {
	Refused      bool          `json:"refused"`
	Requirements []Requirement `json:"requirements"`
	Text         string        `json:"text"`
	Attributes   []string      `json:"attributes"`
	Bodies       []string      `json:"bodies"`
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
	switch {
	case asked.Selector != nil:
		return selector(*asked.Selector)
	case asked.Number != nil:
		return Reply{Text: quantity(*asked.Number).String()}
	case asked.Error == "forbidden":
		return Reply{Bodies: []string{forbidden(asked)}}
	case asked.Error != "":
		return Reply{Bodies: []string{encoded(failure(asked).Status())}}
	case asked.Target != "":
		return path(asked)
	default:
		return values(asked)
	}
}

func selector(text string) Reply {
	found, err := labels.Parse(text)
	if err != nil {
		return Reply{Refused: true}
	}
	requirements, _ := found.Requirements()
	reply := Reply{Requirements: []Requirement{}}
	for _, one := range requirements {
		values := one.Values().UnsortedList()
		sort.Strings(values)
		reply.Requirements = append(reply.Requirements, Requirement{one.Key(), string(one.Operator()), values})
	}
	return reply
}

// As prometheus-adapter's providers make them.
func quantity(number float64) *resource.Quantity {
	return resource.NewMilliQuantity(int64(number*1000.0), resource.DecimalSI)
}

func path(asked *Case) Reply {
	target, err := url.ParseRequestURI(asked.Target)
	if err != nil {
		return Reply{Refused: true}
	}
	factory := &request.RequestInfoFactory{APIPrefixes: sets.NewString("apis", "api"), GrouplessAPIPrefixes: sets.NewString("api")}
	found, err := factory.NewRequestInfo(&http.Request{Method: asked.Method, URL: target})
	if err != nil {
		return Reply{Refused: true}
	}
	if !found.IsResourceRequest {
		return Reply{Attributes: []string{found.Verb, found.Path}}
	}
	return Reply{Attributes: []string{found.Verb, found.Path, found.APIGroup, found.APIVersion, found.Resource, found.Subresource, found.Namespace, found.Name}}
}

func values(asked *Case) Reply {
	var selected *metav1.LabelSelector
	if asked.MetricSelector != "" {
		parsed, err := metav1.ParseToLabelSelector(asked.MetricSelector)
		if err != nil {
			return Reply{Refused: true}
		}
		selected = parsed
	}
	first := v1beta1.MetricValueList{TypeMeta: metav1.TypeMeta{Kind: "MetricValueList", APIVersion: "custom.metrics.k8s.io/v1beta1"}, Items: []v1beta1.MetricValue{}}
	second := v1beta2.MetricValueList{TypeMeta: metav1.TypeMeta{Kind: "MetricValueList", APIVersion: "custom.metrics.k8s.io/v1beta2"}, Items: []v1beta2.MetricValue{}}
	outside := external.ExternalMetricValueList{TypeMeta: metav1.TypeMeta{Kind: "ExternalMetricValueList", APIVersion: "external.metrics.k8s.io/v1beta1"}, Items: []external.ExternalMetricValue{}}
	for _, one := range asked.Values {
		described := corev1.ObjectReference{Kind: asked.Kind, Namespace: one.Namespace, Name: one.Name, APIVersion: asked.ApiVersion}
		stamp := metav1.NewTime(time.Unix(one.Timestamp, 0).UTC())
		number := *quantity(one.Number)
		first.Items = append(first.Items, v1beta1.MetricValue{DescribedObject: described, MetricName: asked.Metric, Timestamp: stamp, WindowSeconds: one.Window, Value: number, Selector: selected})
		second.Items = append(second.Items, v1beta2.MetricValue{DescribedObject: described, Metric: v1beta2.MetricIdentifier{Name: asked.Metric, Selector: selected}, Timestamp: stamp, WindowSeconds: one.Window, Value: number})
		outside.Items = append(outside.Items, external.ExternalMetricValue{MetricName: asked.Metric, MetricLabels: one.Labels, Timestamp: stamp, WindowSeconds: one.Window, Value: number})
	}
	return Reply{Bodies: []string{encoded(first), encoded(second), encoded(outside)}}
}

func failure(asked *Case) *apierrors.StatusError {
	described := schema.ParseGroupResource(asked.Resource)
	switch asked.Error {
	case "metric":
		return provider.NewMetricNotFoundError(described, asked.Metric)
	case "object":
		return provider.NewMetricNotFoundForError(described, asked.Metric, asked.Name)
	case "internal":
		return apierrors.NewInternalError(errors.New(asked.Why))
	case "bad":
		return apierrors.NewBadRequest(asked.Why)
	case "unauthorized":
		return apierrors.NewUnauthorized("Unauthorized")
	}
	return nil
}

// What the API server writes to a response, to the byte.
func forbidden(asked *Case) string {
	reply := path(asked)
	about := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: asked.User}, Verb: reply.Attributes[0], Path: reply.Attributes[1]}
	if len(reply.Attributes) > 2 {
		about.ResourceRequest = true
		about.APIGroup, about.APIVersion, about.Resource = reply.Attributes[2], reply.Attributes[3], reply.Attributes[4]
		about.Subresource, about.Namespace, about.Name = reply.Attributes[5], reply.Attributes[6], reply.Attributes[7]
	}
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	scheme.AddUnversionedTypes(schema.GroupVersion{Version: "v1"}, &metav1.Status{})
	written := httptest.NewRecorder()
	responsewriters.Forbidden(context.Background(), about, written, httptest.NewRequest(asked.Method, "/", nil), asked.Why, serializer.NewCodecFactory(scheme))
	return written.Body.String()
}

func encoded(one any) string {
	var text strings.Builder
	if status, ok := one.(metav1.Status); ok {
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		one = status
	}
	json.NewEncoder(&text).Encode(one)
	return text.String()
}
