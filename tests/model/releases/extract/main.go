// Command extract prints, as JSON, the fields of Kubernetes' objects and the releases that have them. It reads the Go sources of k8s.io/api and
// k8s.io/apimachinery, one module version of each per release, which it is called with:
//
//	go run . 0.29.15 0.30.14 … > ../fields.json
package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"sort"
	"strings"
)

// packages are those with the kinds that are read, in all versions that a release has.
var packages = []string{"core/v1", "apps/v1", "batch/v1", "policy/v1", "storage/v1", "node/v1", "events/v1", "coordination/v1", "resource/v*", "scheduling/v*"}

// roots are the kinds; everything else is there because one of them has it.
var roots = map[string]bool{
	"Pod": true, "Node": true, "Namespace": true, "PersistentVolume": true, "PersistentVolumeClaim": true, "Deployment": true, "ReplicaSet": true,
	"StatefulSet": true, "DaemonSet": true, "Job": true, "PodDisruptionBudget": true, "StorageClass": true, "CSINode": true, "CSIDriver": true,
	"CSIStorageCapacity": true, "VolumeAttachment": true, "RuntimeClass": true, "PriorityClass": true, "Event": true, "Lease": true,
	"ResourceClaim": true, "ResourceSlice": true, "DeviceClass": true, "Workload": true, "PodGroup": true,
}

// plain are types that are written as one value, whatever their structure in Go is.
var plain = map[string]string{
	"meta/v1.Time": "time", "meta/v1.MicroTime": "time", "meta/v1.Duration": "string", "meta/v1.FieldsV1": "any", "api/resource.Quantity": "quantity",
	"util/intstr.IntOrString": "int-or-string", "pkg/runtime.RawExtension": "any", "pkg/types.UID": "string", "pkg/types.NodeName": "string",
}

// release is what one release declares: types by "package.Name".
type release map[string]ast.Expr

func main() {
	found := map[string]map[string][]string{}
	var names []string
	for _, version := range os.Args[1:] {
		name := "1." + strings.Split(version, ".")[1]
		names = append(names, name)
		one := release{}
		one.read(module("k8s.io/api", version), "", packages)
		one.read(module("k8s.io/apimachinery", version), "pkg/apis/", []string{"meta/v1"})
		for key := range one {
			if at := strings.LastIndex(key, "."); roots[key[at+1:]] && !strings.HasPrefix(key, "meta/") {
				one.collect(key, name, found)
			}
		}
	}
	keys := make([]string, 0, len(found))
	for key := range found {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	fmt.Printf("{\n\"source\": \"k8s.io/api and k8s.io/apimachinery, v%s: the fields of objects by the JSON tags of their Go types\",\n", strings.Join(os.Args[1:], ", v"))
	fmt.Printf("\"releases\": [\"%s\"],\n\"types\": {\n", strings.Join(names, "\", \""))
	for at, key := range keys {
		line, err := json.Marshal(spans(found[key], names))
		check(err)
		fmt.Printf("%q: %s%s\n", key, line, map[bool]string{true: ",", false: ""}[at < len(keys)-1])
	}
	fmt.Println("}}")
}

// spans are fields with their types, and behind these the releases that have them where those are not all.
func spans(fields map[string][]string, releases []string) map[string]string {
	said := map[string]string{}
	for name, field := range fields {
		if name == "" {
			continue
		}
		said[name] = field[0]
		if field[1] != releases[0] || field[2] != releases[len(releases)-1] {
			said[name] += " " + field[1] + "-" + field[2]
		}
	}
	return said
}

// module fetches a module version and returns where it is.
func module(name, version string) string {
	told, err := exec.Command("go", "mod", "download", "-json", name+"@v"+version).Output()
	check(err)
	var at struct{ Dir string }
	check(json.Unmarshal(told, &at))
	return at.Dir
}

func (one release) read(dir, below string, patterns []string) {
	for _, pattern := range patterns {
		folders, err := filepath.Glob(filepath.Join(dir, below, pattern))
		check(err)
		for _, folder := range folders {
			name := filepath.Base(filepath.Dir(folder)) + "/" + filepath.Base(folder)
			keep := func(file fs.FileInfo) bool {
				return !strings.HasSuffix(file.Name(), "_test.go") && !strings.HasPrefix(file.Name(), "zz_")
			}
			parsed, err := parser.ParseDir(token.NewFileSet(), folder, keep, parser.SkipObjectResolution)
			check(err)
			for _, inside := range parsed {
				for _, file := range inside.Files {
					one.declared(file, name)
				}
			}
		}
	}
}

// declared notes the types of a file of the package name.
func (one release) declared(file *ast.File, name string) {
	imported := map[string]string{}
	for _, line := range file.Imports {
		path := strings.Split(strings.Trim(line.Path.Value, "\""), "/")
		short := path[len(path)-1]
		if line.Name != nil {
			short = line.Name.Name
		}
		if len(path) > 1 {
			imported[short] = path[len(path)-2] + "/" + path[len(path)-1]
		}
	}
	ast.Inspect(file, func(node ast.Node) bool {
		if spec, ok := node.(*ast.TypeSpec); ok {
			one[name+"."+spec.Name.Name] = qualified(spec.Type, name, imported)
		}
		return true
	})
}

// qualified is a type in which every name says its package.
func qualified(expr ast.Expr, here string, imported map[string]string) ast.Expr {
	switch t := expr.(type) {
	case *ast.Ident:
		if t.Name != strings.ToLower(t.Name[:1])+t.Name[1:] {
			return ast.NewIdent(here + "." + t.Name)
		}
		return t
	case *ast.SelectorExpr:
		return ast.NewIdent(imported[t.X.(*ast.Ident).Name] + "." + t.Sel.Name)
	case *ast.StarExpr:
		return qualified(t.X, here, imported)
	case *ast.ArrayType:
		return &ast.ArrayType{Elt: qualified(t.Elt, here, imported)}
	case *ast.MapType:
		return &ast.MapType{Key: t.Key, Value: qualified(t.Value, here, imported)}
	case *ast.StructType:
		for _, field := range t.Fields.List {
			field.Type = qualified(field.Type, here, imported)
		}
	}
	return expr
}

// collect notes that release has the fields of the type key, and those of all that is in it.
func (one release) collect(key, release string, found map[string]map[string][]string) {
	if fields := found[key]; fields != nil && fields[""] != nil && fields[""][2] == release {
		return
	}
	if found[key] == nil {
		found[key] = map[string][]string{}
	}
	note(found[key], "", "", release)
	one.fields(one[key].(*ast.StructType), release, found[key], found)
}

func (one release) fields(of *ast.StructType, release string, into map[string][]string, found map[string]map[string][]string) {
	for _, field := range of.Fields.List {
		if field.Tag == nil {
			continue
		}
		name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("json"), ",")
		if name == "-" {
			continue
		}
		if name == "" {
			if inside, ok := one[field.Type.(*ast.Ident).Name].(*ast.StructType); ok {
				one.fields(inside, release, into, found)
			}
			continue
		}
		note(into, name, one.written(field.Type, release, found), release)
	}
}

func note(into map[string][]string, name, kind, release string) {
	if seen := into[name]; seen == nil {
		into[name] = []string{kind, release, release}
	} else {
		into[name] = []string{kind, seen[1], release}
	}
}

// written is how a type is written in JSON.
func (one release) written(expr ast.Expr, release string, found map[string]map[string][]string) string {
	switch t := expr.(type) {
	case *ast.ArrayType:
		if inner, ok := t.Elt.(*ast.Ident); ok && inner.Name == "byte" {
			return "string"
		}
		return "[]" + one.written(t.Elt, release, found)
	case *ast.MapType:
		return "{}" + one.written(t.Value, release, found)
	case *ast.Ident:
		if short, ok := plain[t.Name]; ok {
			return short
		}
		if declared, ok := one[t.Name]; ok {
			if _, ok := declared.(*ast.StructType); !ok {
				return one.written(declared, release, found)
			}
			one.collect(t.Name, release, found)
		}
		return t.Name
	}
	panic(fmt.Sprintf("%T", expr))
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
