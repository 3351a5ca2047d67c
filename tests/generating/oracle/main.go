// Answers, one JSON line a case, what kOps' own code makes of a cluster and its InstanceGroups: whether it accepts them, what the Auto
// Scaling groups are called and tagged, and what the kubelets are told.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"k8s.io/kops/pkg/apis/kops"
	"k8s.io/kops/pkg/apis/kops/v1alpha2"
	"k8s.io/kops/pkg/apis/kops/validation"
	"k8s.io/kops/pkg/kopscodecs"
	"k8s.io/kops/pkg/model"
	"k8s.io/kops/pkg/model/iam"
	"k8s.io/kops/upup/pkg/fi/cloudup"
	"k8s.io/kops/upup/pkg/fi/cloudup/awsup"
	"k8s.io/kops/util/pkg/vfs"
)

// Case has a Cluster and InstanceGroups as files have them, the instance types with GPUs, and ServiceAccounts as "namespace/name".
type Case struct {
	Cluster  string
	Groups   []string
	GPUTypes []string
	Accounts []string
}

type Group struct {
	Refused          []string          `json:"refused"`
	AutoScalingGroup string            `json:"autoScalingGroup"`
	Tags             map[string]string `json:"tags"`
	Taints           []string          `json:"taints"`
	Labels           map[string]string `json:"labels"`
}

type Reply struct {
	Refused []string `json:"refused"`
	Groups  []Group  `json:"groups"`
	Roles   []string `json:"roles"`
}

// account is an AWS account in which every type exists.
type account struct {
	*awsup.MockAWSCloud
	gpuTypes []string
}

func (a *account) DescribeInstanceType(name string) (*ec2types.InstanceTypeInfo, error) {
	info := &ec2types.InstanceTypeInfo{
		NetworkInfo:   &ec2types.NetworkInfo{MaximumNetworkInterfaces: aws.Int32(4), Ipv4AddressesPerInterface: aws.Int32(15)},
		MemoryInfo:    &ec2types.MemoryInfo{SizeInMiB: aws.Int64(16384)},
		VCpuInfo:      &ec2types.VCpuInfo{DefaultVCpus: aws.Int32(4)},
		ProcessorInfo: &ec2types.ProcessorInfo{SupportedArchitectures: []ec2types.ArchitectureType{ec2types.ArchitectureTypeX8664}},
	}
	for _, gpu := range a.gpuTypes {
		if gpu == name {
			info.GpuInfo = &ec2types.GpuInfo{}
		}
	}
	return info, nil
}

func (a *account) ResolveImage(name string) (*ec2types.Image, error) {
	return &ec2types.Image{ImageId: aws.String("ami-0123"), Architecture: ec2types.ArchitectureValuesX8664}, nil
}

func main() {
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked Case
		err = json.Unmarshal(line, &asked)
		var reply *Reply
		if err == nil {
			reply, err = answer(&asked)
		}
		if err != nil {
			encoder.Encode(map[string]string{"error": err.Error()})
		} else {
			encoder.Encode(reply)
		}
		out.Flush()
	}
}

func answer(asked *Case) (*Reply, error) {
	if problems := unknownFields(asked.Cluster, &v1alpha2.Cluster{}); len(problems) > 0 {
		return &Reply{Refused: problems}, nil
	}
	decoded, _, err := kopscodecs.Decode([]byte(asked.Cluster), nil)
	if err != nil {
		return nil, err
	}
	cluster, ok := decoded.(*kops.Cluster)
	if !ok {
		return nil, fmt.Errorf("saw %T, expected a Cluster", decoded)
	}
	reply := &Reply{Refused: []string{}}
	for _, problem := range validation.ValidateCluster(cluster, false, vfs.NewVFSContext()) {
		reply.Refused = append(reply.Refused, problem.Error())
	}
	cloud := &account{awsup.BuildMockAWSCloud("us-east-1", "abc"), asked.GPUTypes}
	for _, text := range asked.Groups {
		group, err := look(text, cluster, cloud)
		if err != nil {
			return nil, err
		}
		reply.Groups = append(reply.Groups, *group)
	}
	for _, name := range asked.Accounts {
		namespace, own, _ := strings.Cut(name, "/")
		reply.Roles = append(reply.Roles, iam.IAMNameForServiceAccountRole(own, namespace, cluster.Name))
	}
	return reply, nil
}

// unknownFields says what kOps would leave out silently, or could not read. Upper and lower case count, as for kOps.
func unknownFields(text string, into any) []string {
	data, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return []string{err.Error()}
	}
	strict, err := kjson.UnmarshalStrict(data, into)
	if err != nil {
		strict = append(strict, err)
	}
	var problems []string
	for _, problem := range strict {
		problems = append(problems, problem.Error())
	}
	return problems
}

func look(text string, cluster *kops.Cluster, cloud *account) (*Group, error) {
	if problems := unknownFields(text, &v1alpha2.InstanceGroup{}); len(problems) > 0 {
		return &Group{Refused: problems}, nil
	}
	decoded, _, err := kopscodecs.Decode([]byte(text), nil)
	if err != nil {
		return nil, err
	}
	given, ok := decoded.(*kops.InstanceGroup)
	if !ok {
		return nil, fmt.Errorf("saw %T, expected an InstanceGroup", decoded)
	}
	images := []*kops.ChannelImageSpec{{
		ProviderID: string(kops.CloudProviderAWS), ArchitectureID: "amd64", KubernetesVersion: ">=1.20.0", Name: "owner/ubuntu",
	}}
	channel := &kops.Channel{Spec: kops.ChannelSpec{Images: images}}
	group, err := cloudup.PopulateInstanceGroupSpec(cluster, given, cloud, channel)
	if err != nil {
		return &Group{Refused: []string{err.Error()}}, nil
	}
	found := &Group{Refused: []string{}, Taints: group.Spec.Kubelet.Taints, Labels: group.Spec.Kubelet.NodeLabels}
	for _, problem := range validation.CrossValidateInstanceGroup(group, cluster, cloud, true) {
		found.Refused = append(found.Refused, problem.Error())
	}
	context := &model.KopsModelContext{IAMModelContext: iam.IAMModelContext{Cluster: cluster}}
	found.AutoScalingGroup = context.AutoscalingGroupName(group)
	found.Tags, err = context.CloudTagsForInstanceGroup(group)
	return found, err
}
