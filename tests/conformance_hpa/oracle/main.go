// Command horizontal runs kube-controller-manager's own HorizontalPodAutoscaler controller on small cases.
//
// It reads one case per line from standard input and writes one answer per line to standard output; see case.go for both forms.
// A line that cannot be read is answered with {"error": "..."}; the program continues with the next one.
//
// The controller reads the clock, so everything runs in a bubble of testing/synctest, where the clock moves only when all goroutines sleep.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"testing"
	"testing/synctest"

	"k8s.io/klog/v2"
)

func main() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	bubble := func(t *testing.T) {
		synctest.Test(t, func(*testing.T) {
			if err := serve(os.Stdin, os.Stdout); err != nil {
				fmt.Fprintln(os.Stderr, "horizontal:", err)
				os.Exit(1)
			}
			// The controller's queues never end by themselves, and are no longer needed.
			os.Exit(0)
		})
	}
	every := func(string, string) (bool, error) { return true, nil }
	testing.Main(every, []testing.InternalTest{{Name: "serve", F: bubble}}, nil, nil)
}

func serve(in io.Reader, out io.Writer) error {
	judge := newJudge()
	reader := bufio.NewReaderSize(in, 1<<20)
	writer := bufio.NewWriterSize(out, 1<<16)
	encoder := json.NewEncoder(writer)
	for {
		line, err := reader.ReadBytes('\n')
		if len(line) > 1 {
			if err := encoder.Encode(answer(judge, line)); err != nil {
				return err
			}
			if reader.Buffered() == 0 {
				if err := writer.Flush(); err != nil {
					return err
				}
			}
		}
		if err == io.EOF {
			return writer.Flush()
		}
		if err != nil {
			return err
		}
	}
}

// answer judges one line; any error, including a panic, becomes its answer.
func answer(judge *judge, line []byte) (result Answer) {
	defer func() {
		if problem := recover(); problem != nil {
			result = Answer{Error: fmt.Sprintf("panic: %v", problem)}
		}
	}()
	var c Case
	if err := json.Unmarshal(line, &c); err != nil {
		return Answer{Error: err.Error()}
	}
	if c.Read != nil {
		return read(c.Read)
	}
	steps, err := judge.steps(&c)
	if err != nil {
		return Answer{Error: err.Error()}
	}
	return Answer{Steps: steps}
}
