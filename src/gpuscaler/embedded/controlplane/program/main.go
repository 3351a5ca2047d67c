// Command controlplane is kube-apiserver, kube-controller-manager, kube-scheduler or etcd, by the name it is called with.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	if os.Getenv("CONTROLPLANE_TIED") != "" {
		go endWithParent()
	}
	name := filepath.Base(os.Args[0])
	if name == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	commands := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllers.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	}
	command, known := commands[name]
	if !known {
		fmt.Fprintf(os.Stderr, "called as %s; expected kube-apiserver, kube-controller-manager, kube-scheduler or etcd\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(command()))
}

// endWithParent ends the process once standard input does: whoever started it holds the other end, and the kernel closes that however the
// holder ends. A control plane without its owner would go on for ever.
func endWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}
