// Checks the Dockerfile of standard input as `docker build --check` does: BuildKit's own parser, linter and planner, without a daemon.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/client/llb/sourceresolver"
	"github.com/moby/buildkit/frontend/dockerfile/dockerfile2llb"
	"github.com/opencontainers/go-digest"
)

// Image answers for every base image: nothing is fetched.
type image struct{}

func (image) ResolveImageConfig(_ context.Context, ref string, _ sourceresolver.Opt) (string, digest.Digest, []byte, error) {
	config := []byte(`{"os":"linux","architecture":"amd64","config":{"Env":["PATH=/usr/local/bin:/usr/bin:/bin"]}}`)
	return ref, digest.FromBytes(config), config, nil
}

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = check(text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func check(text []byte) error {
	source := llb.NewSourceMap(nil, "Dockerfile", "Dockerfile", text)
	source.Definition = &llb.Definition{}
	options := dockerfile2llb.ConvertOpt{MetaResolver: image{}, SourceMap: source}
	found, err := dockerfile2llb.DockerfileLint(context.Background(), text, options)
	if err != nil {
		return err
	}
	for _, one := range found.Warnings {
		fmt.Printf("%s: %s\n", one.RuleName, one.Detail)
	}
	if found.Error != nil {
		return fmt.Errorf("%s", found.Error.Message)
	}
	return nil
}
