package main

import (
	"encoding/json"

	v2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install" // registers the kinds
	"k8s.io/kubernetes/pkg/apis/autoscaling/validation"
)

// read processes an object as the API server does on creation: decode, fill in defaults, validate. It returns the object as it would be
// stored, or the errors.
func read(text json.RawMessage) Answer {
	decoded, err := runtime.Decode(legacyscheme.Codecs.UniversalDecoder(), text)
	if err != nil {
		return Answer{Refused: []string{err.Error()}}
	}
	object, is := decoded.(*autoscaling.HorizontalPodAutoscaler)
	if !is {
		return Answer{Refused: []string{"another kind"}}
	}
	var refused []string
	for _, problem := range validation.ValidateHorizontalPodAutoscaler(object, options(object)) {
		refused = append(refused, problem.Error())
	}
	if refused != nil {
		return Answer{Refused: refused}
	}
	kept, err := runtime.Encode(legacyscheme.Codecs.LegacyCodec(v2.SchemeGroupVersion), object)
	if err != nil {
		return Answer{Error: err.Error()}
	}
	return Answer{Kept: kept}
}

// options are the validation options of the API server for a new object, with the feature gate HPAScaleToZero.
func options(object *autoscaling.HorizontalPodAutoscaler) validation.HorizontalPodAutoscalerSpecValidationOptions {
	legacy := object.Spec.ScaleTargetRef.Kind == "ReplicationController"
	return validation.HorizontalPodAutoscalerSpecValidationOptions{
		ScaleTargetRefValidationOptions: validation.CrossVersionObjectReferenceValidationOptions{AllowEmptyAPIGroup: legacy},
		ObjectMetricsValidationOptions:  validation.CrossVersionObjectReferenceValidationOptions{AllowEmptyAPIGroup: true},
	}
}
